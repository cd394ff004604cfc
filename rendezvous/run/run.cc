#include "rendezvous/run/run.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/duration_text.h"
#include "rendezvous/run/seats.h"

namespace ddprun::rendezvous {

std::vector<RunAction> Run::step(const RunEvent& event, TimePoint now) {
  DDPRUN_ASSERT(now >= now_);
  DDPRUN_ASSERT(actions_.empty());
  now_ = now;
  std::visit([&](const auto& what) { on(event.node, what); }, event.what);
  // Heartbeats are many and change nothing.
  if (!std::holds_alternative<Heartbeat>(event.what)) advance();
  if (std::holds_alternative<Join>(event.what)) {
    const auto it = members_.find(event.node);
    const bool waits = it != members_.end() && waits_for_seat(it->second);
    // Of thousands that come at once nobody has time to read it; a heartbeat will be answered so.
    if (waits && !many()) tell_waiting(it->first, it->second);
  }
  return std::exchange(actions_, {});
}

// The handlers (run_events.cc) note who is in and what happened to whom. Every move from state to
// state that follows from that, or from the time, is made here.
void Run::advance() {
  if (gathering()) advance_gathering();
  if (state_ == State::kRunning) advance_running();
  if (state_ == State::kClosing && count(Phase::kStopping) == 0) end();
}

void Run::advance_gathering() {
  DDPRUN_ASSERT(gathering() && seated() == 0 && !verdict_);
  if (!config_) return;
  const int ready = count(Phase::kReady);
  if (count(Phase::kStopping) == 0 && ready >= config_->nnodes_min) {
    if (state_ == State::kGathering) {
      state_ = State::kLastCall;
      last_call_ends_ = now_ + config_->last_call;
    }
    if (ready >= size() || round_ > 0 || now_ >= last_call_ends_) return seal();
  } else {
    state_ = State::kGathering;
  }
  if (now_ >= gather_ends_) {
    const std::string had = number_of(ready, "node") + (ready ? " (" + roster_text() + ")" : "");
    std::string text = "gave up after " + seconds_text(config_->join_timeout) + ": " + had +
                       " of at least " + std::to_string(config_->nnodes_min) + " joined.";
    text += losses_text();
    if (!neighbour_.empty()) text += " Meanwhile " + neighbour_;
    close(round_ == 0 ? Verdict::Kind::kTimedOut : Verdict::Kind::kNodeLost, kExitRendezvous, text);
  }
}

void Run::advance_running() {
  DDPRUN_ASSERT(state_ == State::kRunning && config_ && count(Phase::kStopping) == 0);
  if (count(Phase::kSeated) == 0) {
    if (count(Phase::kFinished) == 0) return regather("every node was lost");
    return close(Verdict::Kind::kSuccess, 0, "every worker exited with 0");
  }
  invite_newcomers();
  grow();
}

// The nodes of the next round, those of the round before first.
std::vector<Run::Members::iterator> Run::chosen() {
  DDPRUN_ASSERT(count(Phase::kReady) >= config_->nnodes_min);
  std::vector<Members::iterator> ready;
  const bool kept = keep_ && living_ready() >= config_->nnodes_min;
  for (const NodeId& node : ready_) {
    const auto it = members_.find(node);
    // Those that live do not wait for workers that only begin.
    if (!kept || it->second.living || !it->second.prepares) ready.push_back(it);
  }
  std::sort(ready.begin(), ready.end(), [](auto a, auto b) {
    const bool a_new = a->second.group_rank_before < 0, b_new = b->second.group_rank_before < 0;
    return std::pair(a_new, a->second.arrival) < std::pair(b_new, b->second.arrival);
  });
  if (std::ssize(ready) > size()) ready.resize(static_cast<std::size_t>(size()));
  return ready;
}

// In the order of their group ranks.
std::vector<Run::Members::iterator> Run::in_order(const std::vector<Members::iterator>& nodes) {
  std::vector<Candidate> candidates;
  for (const auto it : nodes) {
    candidates.push_back({&it->second.offer, it->second.group_rank_before, it->second.arrival});
  }
  std::vector<Members::iterator> ordered;
  for (const std::size_t i : order_nodes(candidates)) ordered.push_back(nodes[i]);
  return ordered;
}

// Gives the nodes of the round their seats.
void Run::seal() {
  DDPRUN_ASSERT(state_ == State::kLastCall && seated() == 0 && count(Phase::kStopping) == 0);
  const std::vector<Members::iterator> ordered = in_order(chosen());
  std::vector<const NodeOffer*> offers;
  for (const auto it : ordered) offers.push_back(&it->second.offer);
  // A node that comes from a run of the same name refuses seats of rounds that it has had there.
  for (const auto it : ordered) round_ = std::max(round_, it->second.after_round + 1);
  std::vector<Seat> seats = assign_seats(offers, round_, restart_count_);
  DDPRUN_ASSERT(seats.size() == ordered.size());
  for (std::size_t i = 0; i < seats.size(); ++i) {
    auto& [node, member] = *ordered[i];
    seats[i].skip = skip_;
    set_phase(ordered[i], Phase::kSeated);
    member.group_rank_before = seats[i].group_rank;
    member.seat = seats[i];
    member.kept = member.living ? seats[i].workers : 0;
    tell(node, Assign{seats[i]});
  }
  state_ = State::kRunning;
  ++roster_;
  forget_last_round();
}

// But for the cause of its failure.
void Run::forget_last_round() {
  remember_failure();
  deaths_.clear();
  first_death_ = {};
  dead_ranks_.clear();
  successes_.clear();
  lost_.clear();
  grow_at_.reset();
  workers_blamed_ = false;
}

}  // namespace ddprun::rendezvous
