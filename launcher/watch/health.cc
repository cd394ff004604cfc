#include "launcher/watch/health.h"

#include "common/text/display.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

std::string line_of(const RunHealth& run) {
  std::string text = "run " + plain_line(run.run_id) + ": ";
  if (run.answers.empty()) return text + "in progress, without an agent\n";
  const rendezvous::RunStatus& status = run.answers.front();
  text += status.state + ", round " + std::to_string(status.round);
  if (status.world_size > 0) text += ", " + std::to_string(status.world_size) + " ranks";
  return text + "\n";
}

}  // namespace

Result<std::string> health_text(const std::vector<RunHealth>& runs, const std::string& run_id) {
  std::string text;
  for (const RunHealth& run : runs) {
    if (!run.mute.empty()) return Failure{Errc::kPeerSilent, run.mute};
    text += line_of(run);
  }
  if (!text.empty()) return text;
  const std::string which = run_id.empty() ? "no run" : "no run '" + plain_line(run_id) + "'";
  return Failure{Errc::kNotFound, which + " of yours is in progress on this machine"};
}

Result<std::string> health_of_this_machine(const std::string& run_id) {
  std::vector<RunHealth> runs;
  for (const PastRun& run : past_runs()) {
    if (!run_id.empty() && run.record.run_id != run_id) continue;
    if (run.state != RunState::kRunning) continue;
    const auto answers = query_windows(windows_of(run), R"({"ask":"watch"})");
    RunHealth health{.run_id = run.record.run_id, .mute = mute_text(run, answers), .answers = {}};
    for (const AgentAnswer& answer : answers) {
      if (!answer.text) continue;
      auto status = rendezvous::decode_status(*answer.text);
      if (!status) return status.error();
      if (!status->runs.empty()) health.answers.push_back(std::move(status->runs.front()));
    }
    runs.push_back(std::move(health));
  }
  return health_text(runs, run_id);
}

}  // namespace ddprun::launcher
