// The part of Run that says where it stands, for operators.

#include <algorithm>
#include <tuple>

#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

const char* Run::phase_name(Phase phase) {
  switch (phase) {
    case Phase::kReady: return "ready";
    case Phase::kSeated: return "seated";
    case Phase::kFinished: return "finished";
    case Phase::kStopping: return "stopping";
    case Phase::kStopped: return "stopped";
    case Phase::kEmpty: return "empty";
  }
  return "?";
}

// When the state that people see ends by itself. deadline() also names moments at which somebody
// only has a look.
std::optional<TimePoint> Run::state_ends() const {
  switch (state_) {
    case State::kGathering: return config_ ? std::optional(gather_ends_) : std::nullopt;
    case State::kLastCall: return wait_ends();
    case State::kRunning: return grow_at_;
    case State::kClosing: return stop_ends_;
    case State::kEnded: break;
  }
  return std::nullopt;
}

RunStatus Run::status(TimePoint now) const {
  const auto milliseconds = [](Duration duration) {
    return std::max(std::chrono::duration_cast<Milliseconds>(duration), Milliseconds(0));
  };
  RunStatus status;
  status.state = name_of(state_);
  status.round = round_;
  status.restart_count = restart_count_;
  if (config_) {
    status.max_restarts = config_->max_restarts;
    status.nnodes_min = config_->nnodes_min;
    status.nnodes_max = config_->nnodes_max;
  }
  status.waiting_for = waiting_for(now);
  if (const auto end = state_ends()) status.left = milliseconds(*end - now);
  if (verdict_) status.verdict = {kind_name(verdict_->kind), verdict_->exit_code, verdict_->text};
  for (const auto& [id, member] : members_) {
    NodeStatus node{id, member.offer.host, member.offer.address, phase_name(member.phase)};
    node.local_world_size = member.offer.local_world_size;
    // A daemon that has just come back gives its nodes time: last_seen may be ahead.
    node.silent = milliseconds(now - member.last_seen);
    if (member.seat) {
      node.group_rank = member.seat->group_rank;
      node.base_rank = member.seat->base_rank;
      if (state_ == State::kRunning) status.world_size = member.seat->world_size;
    }
    status.nodes.push_back(std::move(node));
  }
  std::sort(status.nodes.begin(), status.nodes.end(), [](const auto& a, const auto& b) {
    const bool a_waits = a.group_rank < 0, b_waits = b.group_rank < 0;
    return std::tie(a_waits, a.group_rank, a.id) < std::tie(b_waits, b.group_rank, b.id);
  });
  return status;
}

}  // namespace ddprun::rendezvous
