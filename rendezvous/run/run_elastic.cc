// The part of Run that lets workers live from round to round: which rounds keep them, how a round
// grows, and who may be replaced that ended without a seat.

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds kGatherGrowth{
    20};  // Replacements and nodes that come together grow it once.
// For the workers of a new node to begin, before a round ends without them to let in others.
constexpr std::chrono::seconds kBeginning{30};
constexpr int kSaneCount = 1'000'000'000;  // Of what an agent counts; no agent gets there.

}  // namespace

// Whether every worker that holds a seat can be seated anew. Where some have ended well already,
// the others cannot go on without them: all start again.
bool Run::all_kept() const {
  if (count(Phase::kFinished) > 0) return false;
  return std::all_of(members_.begin(), members_.end(), [](const auto& one) {
    const Member& member = one.second;
    return member.phase != Phase::kSeated ||
           (member.seat->workers > 0 && member.kept == member.seat->workers);
  });
}

// Whether this round began with workers that lived already, all of which can still be kept, beside
// nodes whose workers only begin.
bool Run::has_beginners() const {
  if (count(Phase::kFinished) > 0) return false;
  int living = 0, spoilt = 0, beginners = 0;
  for (const auto& [node, member] : members_) {
    if (member.phase != Phase::kSeated) continue;
    const bool kept = member.kept == member.seat->workers;
    living += member.living ? 1 : 0;
    spoilt += member.living && !kept ? 1 : 0;
    beginners += !member.living && !kept ? 1 : 0;
  }
  return living > 0 && spoilt == 0 && beginners > 0;
}

// Whoever only begins has nothing to lose: it is for its agent to stop it.
bool Run::keeps_workers() const { return all_kept() || has_beginners(); }

// For people: why workers that could have been kept are not.
std::string Run::why_not_kept() const {
  if (keep_) return "";
  const Member* plain = nullptr;
  bool any_kept = false;
  for (const auto& [node, member] : members_) {
    const bool kept = member.phase == Phase::kSeated && member.kept > 0;
    any_kept = any_kept || kept;
    if (member.phase == Phase::kFinished || (member.phase == Phase::kSeated && !kept)) {
      plain = &member;
    }
  }
  if (!any_kept || !plain) return "";
  const bool finished = plain->phase == Phase::kFinished;
  return "; no worker keeps its process, because " + plain->offer.host +
         (finished ? " has finished" : " has one that cannot");
}

// Whether the node is told what it waits for.
bool Run::waits_for_seat(const Member& member) const {
  return member.phase == Phase::kReady || (member.phase == Phase::kEmpty && is_new(member));
}

// Whether those that live need not wait for others.
bool Run::living_are_enough() const {
  int nodes = 0, ranks = 0;
  for (const NodeId& node : ready_) {
    const Member& member = members_.at(node);
    if (!member.living) continue;
    ++nodes;
    ranks += member.offer.local_world_size;
  }
  return nodes >= config_->nnodes_min && ranks >= min_ranks_;
}

// Of the workers that got seats of the round: how many have not failed.
int Run::survivors() const {
  int workers = 0;
  for (const auto& [node, member] : members_) {
    if (member.seat && member.seat->round == (gathering() ? round_ - 1 : round_)) {
      workers += member.seat->workers;
    }
  }
  return workers - static_cast<int>(dead_ranks_.size());
}

// Of the job's state, as a round ends because workers failed: what no worker has any more.
std::int64_t Run::lost_steps() const {
  if (!workers_blamed_ || kept_steps_ == 0 || state_ == State::kClosing) return 0;
  return keep_ && survivors() > 0 ? 0 : kept_steps_;
}

// Whether those that keep their processes cannot begin another round at once.
bool Run::waits_for_others() const {
  if (!keep_) return false;
  int spares = 0;
  for (const auto& [node, member] : members_) spares += member.spares;
  const auto nodes = std::ssize(members_) -
                     std::count_if(members_.begin(), members_.end(),
                                   [&](const auto& one) { return dismissed_.contains(one.first); });
  return nodes < config_->nnodes_min || survivors() + spares < min_ranks_;
}

bool Run::waits_without(const NodeId& gone) const {
  if (!config_) return false;
  int nodes = 0, ranks = 0;
  for (const auto& [node, member] : members_) {
    if (node == gone || dismissed_.contains(node)) continue;
    ++nodes;
    ranks += member.seat ? member.seat->workers : member.offer.local_world_size;
  }
  return nodes < config_->nnodes_min || ranks < min_ranks_;
}

bool Run::is_last_holder(const NodeId& last) const {
  const auto holds = [&](const auto& one) {
    const Member& member = one.second;
    if (dismissed_.contains(one.first)) return false;
    return member.phase == Phase::kSeated ? member.kept > 0 : member.living && member.holders != 0;
  };
  const auto it = members_.find(last);
  if (it == members_.end() || !holds(*it)) return false;
  return std::count_if(members_.begin(), members_.end(), holds) == 1;
}

// Whether the round that runs would end for this node, which has no seat.
bool Run::is_let_in(const Member& member) const {
  // One that had to wait for replacements of its workers is not new.
  if (config_->join_at_restart) return member.living && !is_new(member);
  return member.living || !member.invited;
}

// Nodes without a seat that this round would take.
bool Run::newcomers_wait() const {
  if (ready_.empty() || seated() >= size()) return false;
  return std::any_of(ready_.begin(), ready_.end(),
                     [&](const NodeId& node) { return is_let_in(members_.at(node)); });
}

// Where workers stay, those of a new node begin before anybody waits for them; in reserve, too.
void Run::invite_newcomers() {
  DDPRUN_ASSERT(state_ == State::kRunning);
  if (ready_.empty() || !keeps_workers()) return;
  for (const NodeId& node : ready_) {
    Member& member = members_.at(node);
    if (member.prepares && !std::exchange(member.invited, true)) {
      tell(node, Prepare{restart_count_});
    }
  }
}

// How long a round that keeps its workers waits for more of them before it lets in those it has.
Milliseconds Run::patience_for_growth() const {
  const bool complete =
      parked_ > 0 || std::any_of(ready_.begin(), ready_.end(), [&](const NodeId& node) {
        const Member& member = members_.at(node);
        return is_let_in(member) && member.beginning == 0;
      });
  return complete ? kGatherGrowth : Milliseconds(kBeginning);
}

// Ends a round that could have more workers: where they stay, at a boundary between steps.
void Run::grow() {
  DDPRUN_ASSERT(state_ == State::kRunning && count(Phase::kSeated) > 0);
  const bool wanted = count(Phase::kFinished) == 0 && (parked_ > 0 || newcomers_wait());
  const bool keeps = wanted && all_kept();
  const bool begins = wanted && has_beginners();
  const bool nodes = newcomers_wait() && !config_->join_at_restart;
  if (!wanted || !change_.empty() || (!keeps && !nodes)) return grow_at_.reset();
  const Milliseconds patience = keeps    ? patience_for_growth()
                                : begins ? kBeginning
                                         : config_->last_call;
  grow_at_ = std::min(grow_at_.value_or(now_ + patience), now_ + patience);
  const bool full = !keeps && !begins && seated() + count(Phase::kReady) >= size();
  if (!full && now_ < *grow_at_) return;
  if (keeps) return announce_change(growth_text());
  regather(number_of(count(Phase::kReady), "node") + " joined (" + roster_text() + ")");
}

std::string Run::growth_text() const {
  int workers = parked_;
  int free_seats = size() - seated();
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kSeated) workers += member.seat->workers;
    if (member.phase == Phase::kReady && is_let_in(member) && --free_seats >= 0) {
      workers += member.offer.local_world_size;
    }
  }
  return "growing to " + number_of(workers, "worker");
}

void Run::announce_change(const std::string& change) {
  DDPRUN_ASSERT(state_ == State::kRunning && change_.empty() && all_kept());
  grow_at_.reset();
  change_ = change;
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kSeated) tell(node, stop_of(member, change_));
  }
}

// The node goes, and the run goes on without it: at a boundary between steps, if it can. One that
// has finished owes the run nothing, and one that waits has nothing to stop.
void Run::take_out(const NodeId& node, const std::string& why, const std::string& change) {
  const auto it = members_.find(node);
  if (it == members_.end() || state_ == State::kClosing || state_ == State::kEnded) return;
  const Phase phase = it->second.phase;
  dismissed_.try_emplace(node, why);
  if (phase == Phase::kReady || phase == Phase::kEmpty || phase == Phase::kFinished) {
    return dismiss(it);
  }
  if (phase != Phase::kSeated || !change_.empty()) return;  // It ends its round anyway.
  all_kept() ? announce_change(change) : regather(change);
}

// It has left its round, which may be the first sign that all do.
void Run::rejoin_dismissed(Members::iterator it, const Join& join) {
  const Phase phase = it->second.phase;
  if (phase == Phase::kSeated || phase == Phase::kFinished) {
    const bool planned = join.living && !change_.empty();
    regather(planned ? change_ : it->second.offer.host + " joined again", -1, planned);
  }
  dismiss(it);
}

// A change was planned, and now a rank is gone: who computes towards the boundary will not reach
// it.
void Run::hurry(const std::string& reason, int lost_rank) {
  DDPRUN_ASSERT(state_ == State::kGathering && keep_ && planned_);
  planned_ = false;
  stop_ends_ = now_ + config_->stop_timeout;
  for (const auto& [node, member] : members_) {
    if (member.phase != Phase::kStopping) continue;
    StopRound stop = stop_of(member, reason);
    stop.lost_rank = lost_rank;
    stop.waits = waits_for_others();
    if (workers_blamed_) {
      stop.lost_steps = lost_steps();
      stop.restart = restart_count_;
      stop.max_restarts = config_->max_restarts;
    }
    tell(node, stop);
  }
}

// How a member is to end its round, as things stand.
StopRound Run::stop_of(const Member& member, const std::string& reason) const {
  DDPRUN_ASSERT(member.seat);
  StopRound stop{member.seat->round, reason, state_ == State::kClosing};
  const bool announced = member.phase == Phase::kSeated && !change_.empty();
  stop.keep = !stop.final && (keep_ || announced);
  stop.planned = stop.keep && (planned_ || announced);
  stop.awaits_cause = workers_blamed_ && lacks_cause(deaths_, successes_);
  return stop;
}

void Run::set_parked(Member& member, int parked) {
  DDPRUN_ASSERT(parked >= 0 && parked <= kParkedMax);
  parked_ += parked - member.parked;
  member.parked = parked;
}

void Run::on(const NodeId& node, const Slots& slots) {
  const auto it = members_.find(node);
  if (it == members_.end() || state_ == State::kEnded) return;  // Its heartbeats are answered.
  Member& member = it->second;
  const auto sane = [](int n) { return n >= 0 && n <= kSaneCount; };
  if (!sane(slots.fallen) || !sane(slots.respawned)) return;
  if (slots.serial <= member.serial) return;
  member.serial = slots.serial;
  raise_min_ranks(slots.min_ranks);
  if (member.phase == Phase::kSeated && member.seat->round == slots.round) {
    member.kept = slots.kept;
    set_parked(member, std::clamp(slots.parked, 0, kParkedMax));
    member.spares = std::clamp(slots.spares, 0, kParkedMax);
  }
  replace_fallen(node, member, slots);
}

// A worker that ended without a seat disturbs no round, and uses up a restart all the same: else
// one that dies as soon as it begins would be started for ever.
void Run::replace_fallen(const NodeId& node, Member& member, const Slots& slots) {
  // What another daemon has granted, or this one before it lost the node, is no news.
  member.fallen = std::max(member.fallen, slots.respawned);
  member.granted = std::max(member.granted, slots.respawned);
  const int asked = std::max(slots.fallen - member.fallen, 0);
  member.fallen += asked;
  const bool goes_on = state_ == State::kRunning || gathering();
  const int granted = goes_on ? std::min(asked, config_->max_restarts - restart_count_) : 0;
  restart_count_ += granted;
  member.granted += granted;
  if (asked > granted && goes_on && member.phase == Phase::kEmpty) {
    member.hopeless = true;
    give_up_hopeless(member.offer.host);
  }
  const bool over = state_ == State::kClosing || restart_count_ < config_->max_restarts;
  const int refused = over ? 0 : member.fallen - member.granted;
  DDPRUN_ASSERT(refused >= 0);
  if (member.granted > slots.respawned || refused > 0) {
    tell(node, Respawn{member.granted, restart_count_, refused});
  }
}

// Whether those that are left can ever be enough; nobody waits for new nodes in their place.
void Run::give_up_hopeless(const std::string& host) {
  if (!gathering()) return;
  int left = count(Phase::kReady) + count(Phase::kStopping);
  for (const auto& [node, member] : members_) {
    left += member.phase == Phase::kEmpty && !member.hopeless ? 1 : 0;
  }
  if (left >= config_->nnodes_min) return;
  const bool failed = workers_blamed_ && !deaths_.empty();
  close(failed ? Verdict::Kind::kWorkerFailed : Verdict::Kind::kNodeLost,
        failed ? 0 : kExitRendezvous,
        "a worker of " + host + " ended before it had a seat, and no restart is left.");
}

// For people: whether the failed worker's seat is empty in the next round.
std::string Run::successor_text(Member& member) const {
  const bool kept = state_ == State::kRunning ? keeps_workers() : keep_;
  if (member.spares == 0 || !kept) return "";
  --member.spares;
  return "; a spare takes its seat";
}

// The piece of work that has ended two processes is computed by nobody any more.
void Run::skip(const WorkerDeath& death) {
  constexpr std::size_t kMost = 8;  // Of a few steps; what is long committed matters no more.
  DDPRUN_ASSERT(death.can_skip);
  const std::string piece = piece_of(death.work);
  if (std::find(skip_.begin(), skip_.end(), piece) != skip_.end()) return;
  skip_.push_back(piece);
  if (skip_.size() > kMost) skip_.erase(skip_.begin());
}

}  // namespace ddprun::rendezvous
