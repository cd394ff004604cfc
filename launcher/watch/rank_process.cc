#include "launcher/watch/rank_process.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launcher/watch/screen_text.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t kEnvironmentMax = std::size_t{4} << 20;

}  // namespace

Result<int> pid_of(const PastRun& run, int rank) {
  int world_size = 0;
  for (const std::string& path : windows_of(run)) {
    const auto answer = ask_window(path, R"({"ask":"workers"})");
    if (!answer) continue;
    const json reply = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    if (!reply.is_object() || !reply.contains("workers")) continue;
    world_size = reply.value("world_size", 0);
    for (const json& worker : reply["workers"]) {
      if (worker.value("rank", -1) == rank) return worker.value("pid", 0);
    }
  }
  const std::string of = "rank " + std::to_string(rank) + " of run '" + plain(run.record.run_id) +
                         "' has no process on this machine";
  if (run.state != RunState::kRunning) return Failure{Errc::kNotFound, of + ": the run is over"};
  const bool elsewhere = rank < world_size;
  return Failure{Errc::kNotFound,
                 of + (elsewhere ? "; query it on the machine where it runs"
                                 : "; the run has " + std::to_string(world_size) + " ranks")};
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
