#include "worker_sdk/timer/run_summary.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "common/sync_counts.h"

namespace ddprun::worker_sdk {
namespace {

std::string seconds(const char* name, std::chrono::nanoseconds value) {
  char text[96];
  std::snprintf(text, sizeof text, ", \"%s_s\": %.6f", name,
                std::chrono::duration<double>(value).count());
  return text;
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return text + '"';
}

std::string late_json(const std::vector<LateRank>& late) {
  std::string text;
  for (const LateRank& rank : late) {
    text += std::string(text.empty() ? "" : ", ") + "{\"rank\": " + std::to_string(rank.rank) +
            ", \"steps\": " + std::to_string(rank.counts["steps"]) + seconds("late", rank.time()) +
            ", \"phase\": \"" + worst_phase(rank.counts) + "\"}";
  }
  return ", \"late\": [" + text + "]";
}

}  // namespace

std::string to_json(const RunSummary& summary, const Identity& identity, const std::string& host) {
  const SyncReport& steps = summary.steps;
  return "{\"rank\": " + std::to_string(identity.rank) +
         ", \"world_size\": " + std::to_string(identity.world_size) +
         ", \"restart_count\": " + std::to_string(identity.restart_count) +
         ", \"host\": " + quoted(host) + ", \"steps\": " + std::to_string(steps.steps) +
         seconds("startup", summary.startup) + seconds("data", steps.data) +
         seconds("optimizer", steps.optimizer) + seconds("outside", steps.outside) +
         seconds("forward", steps.forward) + seconds("backward", steps.backward) +
         seconds("waiting", steps.waited) +
         seconds("transfer", steps.exposed - steps.waited - steps.unknown) +
         seconds("unknown", steps.unknown) + seconds("rest", summary.rest) +
         ", \"window_steps\": " + std::to_string(summary.window_steps) + late_json(summary.late) +
         "}\n";
}

bool write_whole(const std::string& path, const std::string& text) {
  const std::string aside = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(aside, std::ios::trunc);
    file << text << std::flush;
    if (!file) return ::unlink(aside.c_str()), false;
  }
  return std::rename(aside.c_str(), path.c_str()) == 0;
}

}  // namespace ddprun::worker_sdk
