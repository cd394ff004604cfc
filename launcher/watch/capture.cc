#include "launcher/watch/capture.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "common/text/display.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/top_screen.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {

using nlohmann::json;

Result<std::string> request_capture(const std::string& run_word) {
  const auto run = named_run(run_word);
  if (!run) return run.error();
  const std::string name = "run '" + cell_text(run->record.run_id) + "'";
  if (run->state != RunState::kRunning) {
    return Failure{Errc::kNotFound, name + " is over: only a run in progress has a next step"};
  }
  std::string why;
  std::vector<AgentAnswer> answers;
  for (const std::string& window : windows_of(*run)) {
    answers.push_back(query_windows({window}, R"({"ask":"capture"})").front());
    const auto& answer = answers.back().text;
    if (!answer) continue;  // Its agent does not answer, or has left the run, as a drained one has.
    const json reply = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    if (!reply.is_object()) continue;
    if (const auto rank = reply.find("rank"); rank != reply.end() && rank->is_number_integer()) {
      return "rank " + std::to_string(rank->get<int>()) + " of " + name +
             " writes a bundle when it begins its next step, and prints its path\n";
    }
    const auto error = reply.find("error");
    if (error != reply.end() && error->is_string()) why = cell_text(error->get<std::string>());
  }
  if (why.empty()) why = mute_text(*run, answers);
  if (why.empty()) why = "none of its agents is on this machine";
  return Failure{Errc::kNotFound, name + " cannot be captured: " + why};
}

}  // namespace ddprun::launcher
