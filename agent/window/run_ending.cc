#include "agent/window/run_ending.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/window/json_line.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kTailsBytesMax = std::size_t{512} << 10;  // Of all streams of this node.

// Whole lines, of which the oldest goes first; of one that is longer, its end.
std::string last_of(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  text.erase(0, text.size() - bytes_max);
  const std::size_t newline = text.find('\n');
  const bool has_more = newline != std::string::npos && newline + 1 < text.size();
  return has_more ? text.substr(newline + 1) : text;
}

json tails_of(const Output& output, const std::map<int, int>& ranks) {
  json tails = json::array();
  const std::size_t streams = 2 * std::max<std::size_t>(ranks.size(), 1);
  for (const auto& [local_rank, rank] : ranks) {
    for (const bool is_stderr : {false, true}) {
      const TailRing* ring = output.tail(local_rank, is_stderr);
      if (!ring || ring->end() == 0) continue;
      tails.push_back({{"rank", rank},
                       {"stream", is_stderr ? "stderr" : "stdout"},
                       {"text", last_of(ring->text(), kTailsBytesMax / streams)},
                       {"end", ring->end()}});
    }
  }
  return tails;
}

}  // namespace

// The names are those of common/history/run_record.h.
void write_ending(const std::string& path, const Output& output, const std::map<int, int>& ranks,
                  const std::optional<RunEnding>& of_run) {
  json ending = {{"tails", tails_of(output, ranks)}};
  if (of_run) {
    const auto& seat = of_run->seat;
    ending["verdict"] = json::parse(
        verdict_json(of_run->verdict, of_run->run_id, std::time(nullptr)), nullptr, false);
    ending["world_size"] = seat ? seat->world_size : 0;
    ending["nodes"] = seat ? seat->group_world_size : 0;
    ending["restarts"] = seat ? seat->restart_count : 0;
  }
  std::ofstream file(path, std::ios::trunc);
  file << json_line(ending) << '\n' << (of_run ? of_run->account : "") << std::flush;
}

}  // namespace ddprun::agent
