// How a Supervisor ends its workers (asked, then killed, then left behind), and then itself.

#include <csignal>
#include <utility>

#include "agent/node/supervisor.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/duration_text.h"

namespace ddprun::agent {

using rendezvous::Verdict;

namespace {

constexpr int kExitWorkersStuck = exit_code_of_signal(SIGKILL);  // As if it had ended them.
// A tick that comes later than that: this machine stood still, and the link may be mended at once.
constexpr std::chrono::seconds kStoodStill{1};
constexpr std::chrono::seconds kReturnTime{2};

}  // namespace

void Supervisor::arm_fence() {
  DDPRUN_ASSERT(!linked_);
  const bool may_go_on = options_.fence_always || replaceable_;
  if (options_.fence == Duration::zero() || !may_go_on || state_ != State::kRunning) return;
  fence_at_ = now_ + options_.fence;
}

// Killed, not asked: what they saved now, they would write beside those that go on without them.
void Supervisor::cut_off() {
  DDPRUN_ASSERT(state_ == State::kRunning && !linked_);
  if (now_ - *fence_at_ > kStoodStill) {
    fence_at_ = now_ + kReturnTime;  // We did not look for the daemon in that time.
    return;
  }
  const std::string text = options_.host + " is cut off from the rendezvous daemon (" + why_down_ +
                           "), and the run may continue without it";
  actions_.push_back(Say{Say::Level::kError, text + ": killing its workers, then joining again"});
  fenced_ = true;
  fence_at_.reset();
  state_ = State::kStopping;
  kill_workers();
}

void Supervisor::on(const LauncherDied&) {
  actions_.push_back(SignalWorkers{SIGKILL});
  actions_.push_back(CleanUp{});
  exit(exit_code_of_signal(SIGKILL), std::nullopt);
}

void Supervisor::begin_stop(int signal) {
  DDPRUN_ASSERT(state_ == State::kRunning || state_ == State::kFinished);
  DDPRUN_ASSERT(!kill_at_ && !abandon_at_);
  state_ = State::kStopping;
  fence_at_.reset();
  if (all_accounted_for()) return workers_gone();
  if (living_ == 0) return;
  kill_at_ = now_ + options_.grace;
  SignalWorkers order{signal};
  if (failed_) {
    order.lost_rank = failure()->rank;
    order.why = "rank " + std::to_string(failure()->rank) + " " + how_it_ended(*failure());
  } else if (order_) {
    order.lost_rank = order_->lost_rank;
    order.why = order_->reason;
  }
  actions_.push_back(std::move(order));
}

void Supervisor::kill_workers() {
  kill_at_.reset();
  if (living_ == 0) return;
  DDPRUN_ASSERT(state_ == State::kStopping);
  actions_.push_back(SignalWorkers{SIGKILL});
  if (!abandon_at_) abandon_at_ = now_ + options_.kill_limit;
}

// They hold memory, ports and devices that a new round would need: this node cannot go on. Where
// the run is over anyway, its verdict is worth a moment more.
void Supervisor::abandon_workers() {
  DDPRUN_ASSERT(state_ == State::kStopping && living_ > 0);
  const std::string text = "SIGKILL does not end " + number_of(living_, "worker") + " of " +
                           options_.host + "; leaving what is stuck behind";
  actions_.push_back(Say{Say::Level::kError, text});
  actions_.push_back(AbandonWorkers{});
  const int status = leaving_ && leaving_->status != 0 ? leaving_->status
                     : failed_                         ? exit_status(*failure())
                                                       : kExitWorkersStuck;
  if (order_ && order_->final && linked_ && !leaving_) {
    abandon_at_.reset();
    living_ = wordless_ = 0;
    state_ = State::kStopped;
    leaving_ = Exit{status, std::nullopt};
    give_up_at_ = now_ + options_.leave_limit;
    return after_stop();
  }
  send(rendezvous::Leave{0, text});
  exit(status, leaving_ ? leaving_->verdict : std::nullopt);
}

void Supervisor::workers_gone() {
  DDPRUN_ASSERT(state_ == State::kStopping && all_accounted_for());
  DDPRUN_ASSERT(!kill_at_ && !abandon_at_);
  state_ = State::kStopped;
  actions_.push_back(CleanUp{});
  if (leaving_) return depart();
  if (fenced_ && !order_) return join();
  if (!linked_) give_up_at_ = now_ + options_.report_limit;
  if (order_) after_stop();
}

// The daemon may name a rank that left early; of many that ended well together, some are enough.
void Supervisor::say_stopped() {
  DDPRUN_ASSERT(state_ == State::kStopped && seat_);
  constexpr std::size_t kSuccessesMax = 64;
  rendezvous::Stopped stopped{round(), deaths_, successes_};
  if (stopped.successes.size() > kSuccessesMax) stopped.successes.resize(kSuccessesMax);
  send(std::move(stopped));
}

// Every worker is gone and the daemon has said how to go on.
void Supervisor::after_stop() {
  DDPRUN_ASSERT(order_ && all_accounted_for());
  say_stopped();
  if (order_->final) return;
  if (!leaving_) return join();
  send(rendezvous::Leave{0, options_.host + " cannot start workers again"});
  exit(leaving_->status, leaving_->verdict);
}

// The others learn faster from a word than from our silence, if the daemon comes back soon.
void Supervisor::depart() {
  DDPRUN_ASSERT(leaving_ && living_ == 0);
  if (!unsaid_) return exit(leaving_->status, leaving_->verdict);
  give_up_at_ = now_ + options_.leave_limit;
}

void Supervisor::join() {
  DDPRUN_ASSERT(state_ == State::kStopped && !leaving_ && all_accounted_for());
  state_ = State::kJoining;
  seat_.reset();
  deaths_.clear();
  successes_.clear();
  failed_ = false;
  if (linked_)
    actions_.push_back(SendJoin{last_round_, options_.local_world_size});
  else
    give_up_at_ = now_ + options_.connect_limit;
}

void Supervisor::leave_for(int status, std::optional<Verdict> verdict) {
  if (living_ == 0) return exit(status, std::move(verdict));
  leaving_ = Exit{status, std::move(verdict)};
  if (state_ == State::kRunning) begin_stop(SIGTERM);
}

void Supervisor::exit(int status, std::optional<Verdict> verdict) {
  DDPRUN_ASSERT(state_ != State::kDone);
  state_ = State::kDone;
  living_ = wordless_ = 0;
  kill_at_.reset();
  abandon_at_.reset();
  give_up_at_.reset();
  fence_at_.reset();
  actions_.push_back(Exit{status, std::move(verdict)});
}

}  // namespace ddprun::agent
