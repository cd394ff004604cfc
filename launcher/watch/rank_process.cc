#include "launcher/watch/rank_process.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/process/family.h"
#include "common/system/log.h"
#include "common/text/figures.h"
#include "launcher/watch/screen_text.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t kEnvironmentMax = std::size_t{4} << 20;
constexpr int kAncestorsMax = 100;

bool descends(int pid, int ancestor, const std::string& proc) {
  for (int depth = 0; depth < kAncestorsMax && pid > 1; ++depth) {
    pid = agent::read_proc_stat(pid, proc).parent;
    if (pid == ancestor) return true;
  }
  return false;
}

}  // namespace

Result<int> pid_of(const PastRun& run, int rank) {
  int world_size = 0;
  const auto answers = ask_windows(windows_of(run), R"({"ask":"workers"})");
  for (const AgentAnswer& answer : answers) {
    if (!answer.text) continue;
    const json reply = json::parse(*answer.text, nullptr, /*allow_exceptions=*/false);
    if (!reply.is_object() || !reply.contains("workers")) continue;
    world_size = reply.value("world_size", 0);
    for (const json& worker : reply["workers"]) {
      if (worker.value("rank", -1) == rank) return worker.value("pid", 0);
    }
  }
  const std::string number = std::to_string(rank);
  if (const std::string mute = mute_text(run, answers); !mute.empty()) {
    const int pid = worker_started_as(run.record.launcher.pid, rank);
    if (pid == 0) {
      return Failure{Errc::kPeerSilent,
                     mute + ", and no worker here was started as rank " + number};
    }
    log::warning(mute + "; process " + std::to_string(pid) + " was started as rank " + number);
    return pid;
  }
  const std::string of = "rank " + number + " of run '" + cell_text(run.record.run_id) +
                         "' has no process on this machine";
  if (run.state != RunState::kRunning) return Failure{Errc::kNotFound, of + ": the run is over"};
  const bool elsewhere = rank < world_size;
  return Failure{Errc::kNotFound,
                 of + (elsewhere ? "; query it on the machine where it runs"
                                 : "; the run has " + number_of(world_size, "rank"))};
}

int worker_started_as(int launcher, int rank, const std::string& proc) {
  struct Found {
    agent::ProcStat stat;
    int pid = 0;
  };
  const std::string wanted = std::to_string(rank);
  std::vector<Found> found;
  for (const int pid : agent::numbered_entries(proc)) {
    const std::string process = proc + "/" + std::to_string(pid);
    if (started_with(process, "RANK") != wanted) continue;
    if (started_with(process, "DDPRUN_JOB").empty() || !descends(pid, launcher, proc)) continue;
    found.push_back({agent::read_proc_stat(pid, proc), pid});
  }
  // A worker's children have its variables: the worker is the one whose parent is not among them.
  // What a dead worker left behind is older than the worker that replaced it.
  std::erase_if(found, [](const Found& one) { return one.stat.state == 'Z'; });
  const Found* newest = nullptr;
  for (const Found& one : found) {
    const bool is_child = std::ranges::any_of(
        found, [&](const Found& other) { return other.pid == one.stat.parent; });
    // The launcher adopts what workers leave behind.
    const bool is_left = one.stat.parent == launcher;
    if (is_child || is_left) continue;
    if (!newest || one.stat.started > newest->stat.started) newest = &one;
  }
  return newest ? newest->pid : 0;
}

std::string started_with(const std::string& process, std::string_view name) {
  std::ifstream in(process + "/environ", std::ios::binary);
  std::string text(kEnvironmentMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  // "NAME=value" entries with a zero byte behind each.
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return std::string(entry.substr(name.size() + 1));
    }
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
  }
  return {};
}

}  // namespace ddprun::launcher
