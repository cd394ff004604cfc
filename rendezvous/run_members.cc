// The part of Run that takes members in and out of rounds, and its text for people and tests.

#include <algorithm>

#include "common/assert.h"
#include "rendezvous/run.h"
#include "rendezvous/verdict.h"

namespace ddprun::rendezvous {

void Run::set_phase(Member& member, Phase phase) {
  --in_phase_[static_cast<std::size_t>(member.phase)];
  member.phase = phase;
  ++in_phase_[static_cast<std::size_t>(phase)];
}

void Run::erase(Members::iterator it) {
  --in_phase_[static_cast<std::size_t>(it->second.phase)];
  members_.erase(it);
  ++roster_;
}

// The member is gone, with its workers. One that had finished owes us nothing.
void Run::lose(Members::iterator it, const std::string& how) {
  const Phase phase = it->second.phase;
  const std::string what = it->second.offer.host + " " + how;
  erase(it);
  if (phase != Phase::kFinished) lost_.push_back(what);
  if (state_ == State::kRunning && phase == Phase::kSeated) regather(what);
  // A run that never began and lost its last node is as good as new.
  if (gathering() && members_.empty() && round_ == 0) on("", Begin{});
}

std::vector<Run::Silent> Run::silent(TimePoint now) {
  if (!silence_check_ || now < *silence_check_) return {};
  if (members_.empty() || state_ == State::kEnded) {
    silence_check_.reset();
    return {};
  }
  std::vector<Silent> silent;
  TimePoint first = now;
  for (const auto& [node, member] : members_) {
    if (now - member.last_seen < config_->heartbeat_timeout) {
      first = std::min(first, member.last_seen);
    } else {
      silent.push_back(
          {node, "was silent for " + std::to_string(config_->heartbeat_timeout.count()) + " ms"});
    }
  }
  silence_check_ = first + config_->heartbeat_timeout;
  return silent;
}

void Run::lose_stuck() {
  std::vector<NodeId> stuck;
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kStopping) stuck.push_back(node);
  }
  for (const NodeId& node : stuck) lose(members_.find(node), "could not stop its workers in time");
}

// Ends the present round and begins to gather the next one.
void Run::regather(const std::string& reason) {
  DDPRUN_ASSERT(state_ == State::kRunning);
  stop_seated(reason, /*final=*/false);
  state_ = State::kGathering;
  ++round_;
  gather_ends_ = now_ + config_->join_timeout;
}

void Run::stop_seated(const std::string& reason, bool final) {
  stop_ends_ = now_ + config_->stop_timeout;
  for (auto& [node, member] : members_) {
    if (member.phase != Phase::kSeated && member.phase != Phase::kFinished) continue;
    set_phase(member, Phase::kStopping);
    tell(node, StopRound{member.seat->round, reason, final});
  }
}

// The outcome is known. It is told once the workers are gone, so that the verdict can name the
// victims.
void Run::close(Verdict::Kind kind, int exit_code, const std::string& reason) {
  verdict_ = Verdict{.kind = kind, .exit_code = exit_code, .text = reason};
  if (kind != Verdict::Kind::kSuccess) stop_seated(reason, /*final=*/true);
  state_ = State::kClosing;
  if (kind == Verdict::Kind::kSuccess) end();
}

void Run::end() {
  if (verdict_->kind == Verdict::Kind::kWorkerFailed) {
    verdict_ = worker_verdict(deaths_, restart_count_, config_->max_restarts);
  }
  state_ = State::kEnded;
  for (const auto& [node, member] : members_) tell(node, EndRun{*verdict_});
}

void Run::report(const WorkerDeath& death) {
  const bool known = std::any_of(deaths_.begin(), deaths_.end(),
                                 [&](const WorkerDeath& d) { return d.rank == death.rank; });
  if (!known) deaths_.push_back(death);
}

// To a node that is no member: it was lost, or the run is over.
void Run::answer_stranger(const NodeId& node, int round) {
  if (state_ == State::kEnded) return tell(node, EndRun{*verdict_});
  // In kClosing the verdict is on its way; a node that is no member can only wait for it.
  if (state_ == State::kClosing) return tell(node, StopRound{round, verdict_->text, true});
  tell(node, StopRound{round, "this node was counted as lost", false});
}

void Run::tell_waiting(const NodeId& node, Member& member) {
  member.roster_told = roster_;
  Waiting waiting;
  waiting.ready = count(Phase::kReady);
  waiting.nnodes_min = config_->nnodes_min;
  waiting.nnodes_max = config_->nnodes_max;
  waiting.last_call = state_ == State::kLastCall;
  waiting.spare = state_ == State::kRunning;
  const TimePoint end = waiting.last_call ? std::min(last_call_ends_, gather_ends_) : gather_ends_;
  if (!waiting.spare && end > now_) {
    waiting.left = std::chrono::duration_cast<Milliseconds>(end - now_);
  }
  waiting.text = roster_text();
  tell(node, waiting);
}

// The hosts of the nodes that wait, at most eight of them by name.
std::string Run::roster_text() const {
  constexpr int kNamesMax = 8;
  std::string text;
  int named = 0;
  for (const auto& [node, member] : members_) {
    if (member.phase != Phase::kReady) continue;
    if (++named > kNamesMax) return text + ", ...";
    text += (named == 1 ? "" : ", ") + member.offer.host;
  }
  return text;
}

std::optional<TimePoint> Run::deadline() const {
  if (state_ == State::kEnded) return std::nullopt;
  std::optional<TimePoint> next = silence_check_;
  const auto consider = [&](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (gathering() && config_) consider(gather_ends_);  // Even without a member.
  if (state_ == State::kLastCall) consider(last_call_ends_);
  if (count(Phase::kStopping) > 0) consider(stop_ends_);
  if (state_ == State::kRunning && grow_at_) consider(*grow_at_);
  return next;
}

void Run::check_invariants() const {
  const bool running = state_ == State::kRunning;
  DDPRUN_ASSERT(running == (seated() > 0) || state_ == State::kEnded);
  DDPRUN_ASSERT(running ? count(Phase::kStopping) == 0 : true);
  DDPRUN_ASSERT(count(Phase::kStopped) == 0 || state_ == State::kClosing ||
                state_ == State::kEnded);
  DDPRUN_ASSERT(verdict_.has_value() == (state_ == State::kClosing || state_ == State::kEnded));
  if (config_) DDPRUN_ASSERT(seated() <= config_->nnodes_max);
  if (config_) DDPRUN_ASSERT(restart_count_ <= config_->max_restarts);
  std::array<int, 5> in_phase{};
  for (const auto& [node, member] : members_) {
    ++in_phase[static_cast<std::size_t>(member.phase)];
    DDPRUN_ASSERT(member.seat.has_value() == (member.phase != Phase::kReady));
    if (member.seat) DDPRUN_ASSERT(member.seat->round <= round_);
    const bool seated = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
    if (seated) DDPRUN_ASSERT(member.seat->round == round_);
  }
  DDPRUN_ASSERT(in_phase == in_phase_);
}

namespace {

std::string line(const Waiting& w) {
  return "waiting " + std::to_string(w.ready) + "/" + std::to_string(w.nnodes_min) + ":" +
         std::to_string(w.nnodes_max) + (w.last_call ? " last call" : "") +
         (w.spare ? " spare" : "") + " (" + w.text + ")";
}
std::string line(const Assign& a) {
  const Seat& s = a.seat;
  return "assign round=" + std::to_string(s.round) + " group_rank=" + std::to_string(s.group_rank) +
         "/" + std::to_string(s.group_world_size) + " ranks=" + std::to_string(s.base_rank) +
         ".. of " + std::to_string(s.world_size) + " restarts=" + std::to_string(s.restart_count) +
         " master=" + s.master_address + ":" + std::to_string(s.master_port);
}
std::string line(const StopRound& s) {
  return std::string("stop round=") + std::to_string(s.round) + (s.final ? " for good (" : " (") +
         s.reason + ")";
}
std::string line(const EndRun& e) {
  return "end code=" + std::to_string(e.verdict.exit_code) + " (" + e.verdict.text + ")";
}
std::string line(const Refuse& r) { return "refuse (" + r.reason + ")"; }
std::string line(const Alive&) { return "alive"; }

const char* name_of(Run::State state) {
  switch (state) {
    case Run::State::kGathering: return "gathering";
    case Run::State::kLastCall: return "last call";
    case Run::State::kRunning: return "running";
    case Run::State::kClosing: return "closing";
    case Run::State::kEnded: return "ended";
  }
  return "?";
}

}  // namespace

std::string to_string(const RunAction& action) {
  return action.node + " <- " + std::visit([](const auto& m) { return line(m); }, action.message);
}

std::string Run::describe() const {
  return std::string(name_of(state_)) + " round=" + std::to_string(round_) +
         " restarts=" + std::to_string(restart_count_) +
         " ready=" + std::to_string(count(Phase::kReady)) + " seated=" + std::to_string(seated()) +
         " stopping=" + std::to_string(count(Phase::kStopping));
}

}  // namespace ddprun::rendezvous
