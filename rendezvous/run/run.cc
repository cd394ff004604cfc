#include "rendezvous/run/run.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
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
    const bool waits =
        state_ != State::kEnded && it != members_.end() && waits_for_seat(it->second);
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
  if (count(Phase::kStopping) == 0 && ready >= config_->nnodes_min && is_enough()) {
    if (state_ == State::kGathering) {
      state_ = State::kLastCall;
      last_call_ends_ = now_ + config_->last_call;
    }
    if (ready >= size() || round_ > 0 || now_ >= last_call_ends_) return seal();
  } else {
    state_ = State::kGathering;
  }
  // All nodes that the run may have are here, with all of their workers.
  if (round_ == 0 && ready >= config_->nnodes_max && !is_enough())
    return close_for_ranks(ready_ranks());
  if (now_ >= gather_ends_) {
    const bool lacks_ranks = ready >= config_->nnodes_min && count(Phase::kStopping) == 0;
    const std::string had =
        lacks_ranks ? number_of(ready_ranks(), "rank") : number_of(ready, "node");
    std::string text = "gave up after " + seconds_text(config_->join_timeout) + ": " + had +
                       (ready ? " (" + roster_text() + ")" : "") + " of at least " +
                       std::to_string(lacks_ranks ? min_ranks_ : config_->nnodes_min) +
                       (lacks_ranks ? " (--min-ranks, or min_world of the job)." : " joined.");
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
  if (ends_for_ranks()) return;
  invite_newcomers();
  grow();
}

int Run::ready_ranks() const {
  int ranks = 0;
  for (const NodeId& node : ready_) ranks += members_.at(node).offer.local_world_size;
  return ranks;
}

// Whether the nodes that are ready have as many ranks as the job needs.
bool Run::is_enough() const {
  if (min_ranks_ <= 1) return true;
  int ranks = 0;
  for (const auto& it : chosen()) ranks += it->second.offer.local_world_size;
  return ranks >= min_ranks_;
}

void Run::raise_min_ranks(int ranks) {
  constexpr int kMost = 1'000'000;
  if (ranks <= min_ranks_) return;
  min_ranks_ = std::min(ranks, kMost);
  ++roster_;
}

std::string Run::ranks_needed_text(int ranks) const {
  return "the job needs at least " + number_of(min_ranks_, "rank") + ", and " +
         std::to_string(ranks) + (ranks == 1 ? " is" : " are") + " here";
}

// No other node may come: waiting would be in vain.
void Run::close_for_ranks(int ranks) {
  close(Verdict::Kind::kTimedOut, kExitRendezvous,
        ranks_needed_text(ranks) +
            ", and no more can come: raise --nnodes or --nproc-per-node, or "
            "lower --min-ranks, or min_world of the job.");
}

// What a job needs is not known before its first worker is there. Its ranks compute nothing in a
// round that is too small, and can be kept until others come.
bool Run::ends_for_ranks() {
  if (min_ranks_ <= 1 || !all_kept()) return false;
  int ranks = 0;
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kSeated) ranks += member.seat->workers;
  }
  if (ranks >= min_ranks_) return false;
  if (round_ == 0 && seated() >= config_->nnodes_max) {
    close_for_ranks(ranks);
  } else {
    regather(ranks_needed_text(ranks));
  }
  return true;
}

// The nodes of the next round, those of the round before first.
std::vector<Run::Members::const_iterator> Run::chosen() const {
  DDPRUN_ASSERT(count(Phase::kReady) >= config_->nnodes_min);
  std::vector<Members::const_iterator> ready;
  const bool kept = keep_ && living_are_enough();
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
  std::vector<Members::iterator> nodes;
  for (const auto& it : chosen()) nodes.push_back(members_.find(it->first));
  const std::vector<Members::iterator> ordered = in_order(nodes);
  std::vector<const NodeOffer*> offers;
  for (const auto it : ordered) offers.push_back(&it->second.offer);
  // A node that comes from a run of the same name refuses seats of rounds that it has had there.
  for (const auto it : ordered) round_ = std::max(round_, it->second.after_round + 1);
  std::vector<Seat> seats = assign_seats(offers, round_, restart_count_);
  DDPRUN_ASSERT(seats.size() == ordered.size());
  // The state of the job goes on with any of its holders.
  const bool is_held = std::any_of(ordered.begin(), ordered.end(), [](const auto& it) {
    return it->second.living && it->second.holders != 0;
  });
  const std::int64_t lost_steps = is_held ? 0 : std::exchange(kept_steps_, 0);
  for (std::size_t i = 0; i < seats.size(); ++i) {
    auto& [node, member] = *ordered[i];
    seats[i].skip = skip_;
    seats[i].lost_steps = lost_steps;
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
