// The part of Agent for those that watch the run on this machine, while it goes on (ddprunctl top,
// logs, stacks, and the line on the terminal) and afterwards (ddprunctl history).

#include "agent/node/agent.h"
#include "agent/node/verdict_file.h"
#include "agent/output/terminal_facts.h"
#include "agent/window/run_ending.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFreshEnough = std::chrono::seconds(1);

}  // namespace

std::map<int, int> Agent::ranks() const {
  std::map<int, int> ranks;
  for (const auto& [local_rank, place] : places_) ranks[local_rank] = rank_of(local_rank);
  return ranks;
}

NodeStanding Agent::standing() const {
  return {.offer = options_.offer, .seat = seat_, .running = supervisor_.running()};
}

void Agent::open_window() {
  if (options_.files.window.empty()) return;
  window_.workers = [this] {
    return NodeWindow::Workers{.run_id = options_.run_id,
                               .host = options_.offer.host,
                               .world_size = seat_ ? seat_->world_size : 0,
                               .pids = processes_.pids(),
                               .ranks = ranks()};
  };
  window_.refresh = [this] {
    if (Clock::now() - sync_told_ < kFreshEnough || ending_) return;
    progress_.look_at_counts();
    say_alive(/*with_counts=*/true);
  };
  window_.runs = [this]() -> rendezvous::DaemonStatus {
    if (auto all = link_->watched()) return *std::move(all);
    return {{view_.run(standing(), Clock::now())}};
  };
  window_.open(options_.files.window);
}

void Agent::leave_ending(const Exit& exit) const {
  if (options_.files.ending.empty()) return;
  std::optional<RunEnding> of_run;
  if (options_.speaks_for_run) {
    const bool dismissed = !exit.verdict && exit.status == 0;  // Drained: the run goes on.
    rendezvous::Verdict verdict = verdict_or(exit.verdict, exit.status, complaint_);
    if (dismissed) verdict.kind = rendezvous::Verdict::Kind::kSuccess;
    of_run = {options_.run_id, std::move(verdict), seat_, account_};
  }
  write_ending(options_.files.ending, output_, ranks(), of_run);
}

void Agent::keep_status() {
  status_line_.may_show = [this] {
    const bool runs = supervisor_.running() && !waiting_.active() && !progress_.paused();
    return runs && has_foreground(options_.job.launcher_pid);
  };
  status_line_.facts = [this] {
    const TimePoint now = Clock::now();
    progress_.look_at_counts();
    view_.report(ledger_.times(/*whole=*/false, now), now);
    return view_.status(standing(), now);
  };
  const bool wanted = options_.status_line && options_.speaks_for_run &&
                      options_.output.lines.format == LineFormat::kText;
  if (wanted) status_line_.start();
}

}  // namespace ddprun::agent
