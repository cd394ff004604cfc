#include "rendezvous/run.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "rendezvous/seats.h"
#include "rendezvous/verdict.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kExitRendezvousFailed = 3;

std::string number_of(int n, const char* thing) {
  return std::to_string(n) + " " + thing + (n == 1 ? "" : "s");
}

std::string seconds_text(Milliseconds duration) {
  const auto tenths = duration.count() / 100;
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10 != 0) text += "." + std::to_string(tenths % 10);
  return text + " s";
}

}  // namespace

std::vector<RunAction> Run::step(const RunEvent& event, TimePoint now) {
  DDPRUN_ASSERT(now >= now_);
  now_ = now;
  actions_.clear();
  std::visit([&](const auto& what) { on(event.node, what); }, event.what);
  // Heartbeats are many and change nothing.
  if (!std::holds_alternative<Heartbeat>(event.what)) advance();
  if (std::holds_alternative<Join>(event.what)) {
    const auto it = members_.find(event.node);
    const bool waits = it != members_.end() && it->second.phase == Phase::kReady;
    if (waits) tell_waiting(it->first, it->second);
  }
  return std::exchange(actions_, {});
}

// The handlers below say who is in and what happened to whom. Every move from state to state that
// follows from that, or from the time, is made here.
void Run::advance() {
  if (gathering()) advance_gathering();
  if (state_ == State::kRunning) advance_running();
  if (state_ == State::kClosing && count(Phase::kStopping) == 0) end();
}

void Run::advance_gathering() {
  if (!config_) return;
  const int ready = count(Phase::kReady);
  if (count(Phase::kStopping) == 0 && ready >= config_->nnodes_min) {
    if (state_ == State::kGathering) {
      state_ = State::kLastCall;
      last_call_ends_ = now_ + config_->last_call;
    }
    if (ready >= config_->nnodes_max || round_ > 0 || now_ >= last_call_ends_) return seal();
  } else {
    state_ = State::kGathering;
  }
  if (now_ >= gather_ends_) {
    const std::string had = number_of(ready, "node") + (ready ? " (" + roster_text() + ")" : "");
    std::string text = "gave up after " + seconds_text(config_->join_timeout) + ": " + had +
                       " of at least " + std::to_string(config_->nnodes_min) + " came.";
    for (const std::string& what : lost_) text += " " + what + ".";
    close(round_ == 0 ? Verdict::Kind::kTimedOut : Verdict::Kind::kNodeLost, kExitRendezvousFailed,
          text);
  }
}

void Run::advance_running() {
  if (count(Phase::kSeated) == 0) {
    if (count(Phase::kFinished) == 0) return regather("every node was lost");
    return close(Verdict::Kind::kSuccess, 0, "every worker exited with 0");
  }
  const bool could_grow =
      count(Phase::kReady) > 0 && count(Phase::kFinished) == 0 && seated() < config_->nnodes_max;
  if (!could_grow) return grow_at_.reset();
  if (!grow_at_) grow_at_ = now_ + config_->last_call;
  const bool full = seated() + count(Phase::kReady) >= config_->nnodes_max;
  if (full || now_ >= *grow_at_) {
    regather(number_of(count(Phase::kReady), "node") + " joined (" + roster_text() + ")");
  }
}

// Chooses the nodes of the round, those of the round before first, and gives them their seats.
void Run::seal() {
  std::vector<Members::iterator> ready;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (it->second.phase == Phase::kReady) ready.push_back(it);
  }
  std::sort(ready.begin(), ready.end(), [](auto a, auto b) {
    const bool a_new = a->second.group_rank_before < 0, b_new = b->second.group_rank_before < 0;
    return std::pair(a_new, a->second.arrival) < std::pair(b_new, b->second.arrival);
  });
  if (std::ssize(ready) > config_->nnodes_max) ready.resize(config_->nnodes_max);

  std::vector<Candidate> candidates;
  for (auto it : ready) {
    candidates.push_back({&it->second.offer, it->second.group_rank_before, it->second.arrival});
  }
  std::vector<Members::iterator> ordered;
  std::vector<const NodeOffer*> offers;
  for (const std::size_t i : order_nodes(candidates)) {
    ordered.push_back(ready[i]);
    offers.push_back(&ready[i]->second.offer);
  }
  const std::vector<Seat> seats = assign_seats(offers, round_, restart_count_);
  for (std::size_t i = 0; i < seats.size(); ++i) {
    auto& [node, member] = *ordered[i];
    set_phase(member, Phase::kSeated);
    member.group_rank_before = seats[i].group_rank;
    member.seat = seats[i];
    tell(node, Assign{seats[i]});
  }
  state_ = State::kRunning;
  ++roster_;
  deaths_.clear();
  lost_.clear();
  grow_at_.reset();
}

void Run::on(const NodeId& node, const Join& join) {
  const auto it = members_.find(node);
  if (state_ == State::kClosing && it != members_.end()) {
    if (it->second.phase != Phase::kReady) set_phase(it->second, Phase::kStopped);
    return;  // It has no workers; it will hear the verdict with the others.
  }
  if (state_ == State::kClosing || state_ == State::kEnded) return answer_stranger(node, -1);
  if (it != members_.end() && it->second.seat && join.after_round < it->second.seat->round) {
    // It said so before it heard of its seat, or has lost what we told it since.
    const Member& member = it->second;
    if (member.phase != Phase::kStopping) return tell(node, Assign{*member.seat});
    return tell(node, StopRound{member.seat->round, "the round is over", false});
  }
  if (const auto why = objection(node, join.offer)) return tell(node, Refuse{*why});
  admit(node, join);
}

void Run::admit(const NodeId& node, const Join& join) {
  if (!config_) {
    config_ = join.offer.config;
    config_from_ = join.offer.host;
    gather_ends_ = now_ + config_->join_timeout;
  }
  const auto [it, is_new] = members_.try_emplace(node);
  Member& member = it->second;
  if (is_new) {
    member.arrival = arrivals_++;
    ++in_phase_[static_cast<std::size_t>(member.phase)];
    if (!silence_check_) silence_check_ = now_ + config_->heartbeat_timeout;
  }
  // A daemon that forgot everything must not number a round as one its nodes remember.
  if (gathering()) round_ = std::max(round_, join.after_round + 1);
  const bool left_its_seat = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
  member.offer = join.offer;
  member.last_seen = now_;
  member.seat.reset();
  set_phase(member, Phase::kReady);
  ++roster_;
  // It has no workers any more, whatever we believed: the others cannot go on without them.
  if (left_its_seat) regather(member.offer.host + " joined again");
}

// What is wrong with an offer, as a sentence for its node; nothing if it may join.
std::optional<std::string> Run::objection(const NodeId& node, const NodeOffer& offer) const {
  if (offer.local_world_size < 1) return "it offers no worker";
  const RunConfig& theirs = offer.config;
  if (theirs.nnodes_min < 1 || theirs.nnodes_max < theirs.nnodes_min || theirs.max_restarts < 0) {
    return "its --nnodes or --max-restarts makes no sense";
  }
  if (!config_) return std::nullopt;
  const auto differs = [&](const std::string& flag, const auto& our_value,
                           const auto& their_value) {
    return flag + " is " + their_value + " on " + offer.host + " but " + our_value + " on " +
           config_from_ + "; it must be the same on every node";
  };
  const auto nnodes = [](const RunConfig& c) {
    return std::to_string(c.nnodes_min) + ":" + std::to_string(c.nnodes_max);
  };
  if (nnodes(theirs) != nnodes(*config_))
    return differs("--nnodes", nnodes(*config_), nnodes(theirs));
  if (theirs.max_restarts != config_->max_restarts) {
    return differs("--max-restarts", std::to_string(config_->max_restarts),
                   std::to_string(theirs.max_restarts));
  }
  for (const auto& [other, member] : members_) {
    if (other != node && offer.node_rank >= 0 && member.offer.node_rank == offer.node_rank) {
      return "--node-rank " + std::to_string(offer.node_rank) + " is already taken by " +
             member.offer.host;
    }
  }
  return std::nullopt;
}

// A heartbeat says which seat its node holds, so that a lost message is made good by the next one.
void Run::on(const NodeId& node, const Heartbeat& heartbeat) {
  const auto it = members_.find(node);
  if (it == members_.end() || state_ == State::kEnded)
    return answer_stranger(node, heartbeat.round);
  Member& member = it->second;
  member.last_seen = now_;
  const bool right = member.seat ? heartbeat.round == member.seat->round : heartbeat.round == -1;
  if (member.phase == Phase::kSeated && !right) return tell(node, Assign{*member.seat});
  if (member.phase == Phase::kStopping && right) {
    return tell(node,
                StopRound{member.seat->round, "the round is over", state_ == State::kClosing});
  }
  if (member.phase == Phase::kReady && !right) {
    return tell(node, StopRound{heartbeat.round, "the round is over", false});
  }
  if (member.phase == Phase::kReady && member.roster_told != roster_)
    return tell_waiting(node, member);
  tell(node, Alive{});
}

void Run::on(const NodeId& node, const Finished& finished) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, finished.round);
  Member& member = it->second;
  if (member.phase == Phase::kSeated && member.seat->round == finished.round) {
    set_phase(member, Phase::kFinished);
  }
}

void Run::on(const NodeId& node, const Failed& failed) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, failed.round);
  if (!it->second.seat || it->second.seat->round != failed.round) return;
  report(failed.death);
  if (state_ != State::kRunning)
    return;  // A victim, or a failure of workers that are being stopped.
  const std::string reason = "rank " + std::to_string(failed.death.rank) + " on " +
                             failed.death.host + " " + how_it_ended(failed.death);
  if (restart_count_ < config_->max_restarts) {
    ++restart_count_;
    regather(reason);
  } else {
    close(Verdict::Kind::kWorkerFailed, 0, reason);
  }
}

void Run::on(const NodeId& node, const Stopped& stopped) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, stopped.round);
  Member& member = it->second;
  if (!member.seat || member.seat->round != stopped.round) return;
  for (const WorkerDeath& death : stopped.deaths) report(death);
  // Between rounds the node's Join says the same; only the end of the run waits for this word.
  if (state_ == State::kClosing) set_phase(member, Phase::kStopped);
}

void Run::on(const NodeId& node, const Leave& leave) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  const std::string text = it->second.offer.host + " left: " + leave.reason;
  const bool fixed = config_->nnodes_min == config_->nnodes_max;
  const bool active = gathering() || state_ == State::kRunning;
  if (active && fixed && it->second.phase != Phase::kFinished && leave.signal != 0) {
    close(Verdict::Kind::kInterrupted, 128 + leave.signal, text);
  }
  lose(members_.find(node), "left");
}

void Run::on(const NodeId& node, const Lost& lost) {
  if (const auto it = members_.find(node); it != members_.end()) lose(it, lost.how);
}

void Run::on(const NodeId&, const Tick&) {
  if (count(Phase::kStopping) > 0 && now_ >= stop_ends_) lose_stuck();
}

void Run::on(const NodeId&, const Begin&) {
  const TimePoint now = now_;
  *this = Run();
  now_ = now;
}

void Run::on(const NodeId&, const Recovered&) {
  // Nodes need time to find us again; what they have to say they will say when they have.
  constexpr std::chrono::seconds kToReturn{10};
  for (auto& [node, member] : members_) member.last_seen = now_ + kToReturn;
  // Who has stopped its workers meanwhile could not say so.
  if (count(Phase::kStopping) > 0) stop_ends_ = std::max(stop_ends_, now_ + kToReturn);
  if (config_ && gathering()) gather_ends_ = now_ + config_->join_timeout;
}

void Run::on(const NodeId&, const Cancel& cancel) {
  if (state_ == State::kClosing || state_ == State::kEnded) return;
  close(Verdict::Kind::kInterrupted, 128 + cancel.signal, cancel.reason);
}

}  // namespace ddprun::rendezvous
