// The part of Run that takes members in and out of rounds.

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {

bool Run::may_become(Phase before, Phase after) {
  switch (after) {
    case Phase::kReady: return before != Phase::kStopped;
    case Phase::kSeated: return before == Phase::kReady;
    case Phase::kFinished: return before == Phase::kSeated;
    case Phase::kStopping: return before != Phase::kReady && before != Phase::kEmpty;
    case Phase::kStopped: return before == Phase::kStopping || before == Phase::kStopped;
    case Phase::kEmpty: return before != Phase::kStopped;
  }
  return false;
}

void Run::set_phase(Members::iterator it, Phase phase) {
  auto& [node, member] = *it;
  DDPRUN_ASSERT(may_become(member.phase, phase));
  --in_phase_[static_cast<std::size_t>(member.phase)];
  member.phase = phase;
  ++in_phase_[static_cast<std::size_t>(phase)];
  if (phase == Phase::kReady) {
    ready_.insert(node);
  } else {
    ready_.erase(node);
  }
}

// Under the node rank that its user gave it, if any.
void Run::take_offer(Members::iterator it, const NodeOffer& offer) {
  free_node_rank(it);
  it->second.offer = offer;
  if (offer.node_rank < 0) return;
  const bool is_free = node_ranks_.emplace(offer.node_rank, it->first).second;
  DDPRUN_ASSERT(is_free);
}

void Run::free_node_rank(Members::iterator it) {
  const auto found = node_ranks_.find(it->second.offer.node_rank);
  if (found != node_ranks_.end() && found->second == it->first) node_ranks_.erase(found);
}

void Run::erase(Members::iterator it) {
  --in_phase_[static_cast<std::size_t>(it->second.phase)];
  ready_.erase(it->first);
  free_node_rank(it);
  set_parked(it->second, 0);
  members_.erase(it);
  ++roster_;
}

// The node is not needed any more; its workers are gone.
void Run::dismiss(Members::iterator it) {
  DDPRUN_ASSERT(it->second.phase != Phase::kSeated && it->second.phase != Phase::kStopped);
  const bool waits = state_ != State::kClosing && waits_without(it->first);
  const NodeId node = it->first;
  if (it->second.offer.hosts_endpoint) daemon_host_ = node;
  if (const std::string& step = it->second.offer.scheduler_step; !step.empty()) {
    step_mates_[node] = step;
  }
  erase(it);
  Dismiss dismiss = dismissal(node);
  dismiss.waits = waits;
  send(node, std::move(dismiss));
}

// The answer to each report of a node that has left: whether others still need it.
Dismiss Run::dismissal(const NodeId& node) const {
  Dismiss dismiss{dismissed_.at(node)};
  dismiss.hosts = node == daemon_host_ && !members_.empty();
  const auto mate = step_mates_.find(node);
  dismiss.for_step = mate != step_mates_.end() &&
                     std::any_of(members_.begin(), members_.end(), [&](const auto& one) {
                       return one.second.offer.scheduler_step == mate->second;
                     });
  return dismiss;
}

// The member is gone, with its workers. One that had finished owes us nothing.
void Run::lose(Members::iterator it, const std::string& how) {
  DDPRUN_ASSERT(it != members_.end());
  const Phase phase = it->second.phase;
  const std::string what = it->second.offer.host + " " + how;
  const int first_rank = it->second.seat ? it->second.seat->base_rank : -1;
  if (const Member& member = it->second; member.fallen > 0) {
    lost_grants_.push_back({it->first, member.fallen, member.granted});
  }
  erase(it);
  if (phase != Phase::kFinished) note_loss(what);
  if (state_ == State::kRunning && phase == Phase::kSeated) regather(what, first_rank);
  if (state_ == State::kGathering && planned_ && phase == Phase::kStopping) hurry(what, first_rank);
  if (workers_blamed_ && phase == Phase::kStopping) excuse_workers(what);
  // A run that never began and lost its last node is as good as new.
  if (gathering() && members_.empty() && round_ == 0) forget();
}

void Run::note_loss(const std::string& what) {
  const auto known =
      std::find_if(lost_.begin(), lost_.end(), [&](const Loss& loss) { return loss.what == what; });
  if (known == lost_.end()) return lost_.push_back({what});
  ++known->times;
}

// The round has ended because a node is gone, not because a worker failed. See the top of run.h.
void Run::excuse_workers(const std::string& reason) {
  DDPRUN_ASSERT(workers_blamed_);
  workers_blamed_ = false;
  if (state_ == State::kGathering) {
    DDPRUN_ASSERT(restart_count_ > 0);
    --restart_count_;
    return;
  }
  DDPRUN_ASSERT(state_ == State::kClosing);
  DDPRUN_ASSERT(verdict_->kind == Verdict::Kind::kWorkerFailed);
  verdict_.reset();
  keep_ = planned_ = false;
  state_ = State::kGathering;
  ++round_;
  gather_ends_ = now_ + config_->join_timeout;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    auto& [node, member] = *it;
    if (member.phase != Phase::kStopping && member.phase != Phase::kStopped) continue;
    set_phase(it, Phase::kStopping);
    send(node, StopRound{member.seat->round, reason, false});
  }
}

void Run::lose_stuck() {
  DDPRUN_ASSERT(state_ == State::kGathering || state_ == State::kClosing);
  DDPRUN_ASSERT(count(Phase::kStopping) > 0 && now_ >= stop_ends_);
  std::vector<NodeId> stuck, missing;
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kStopping) (member.missing ? missing : stuck).push_back(node);
  }
  for (const NodeId& node : missing) lose(members_.find(node), "did not come back");
  workers_blamed_ = false;  // The others are not lost to us, we let them go.
  for (const NodeId& node : stuck) lose(members_.find(node), "could not stop its workers in time");
}

// Ends the present round and begins to gather the next one.
void Run::regather(const std::string& reason, int lost_rank, bool planned) {
  DDPRUN_ASSERT(state_ == State::kRunning);
  keep_ = keeps_workers();
  planned_ = keep_ && planned;
  stop_seated(reason + why_not_kept(), /*final=*/false, lost_rank);
  DDPRUN_ASSERT(seated() == 0);
  state_ = State::kGathering;
  ++round_;
  gather_ends_ = now_ + config_->join_timeout;
}

void Run::stop_seated(const std::string& reason, bool final, int lost_rank) {
  DDPRUN_ASSERT(config_);
  if (final) keep_ = planned_ = false;
  change_.clear();
  stop_ends_ = now_ + config_->stop_timeout;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    const Phase phase = it->second.phase;
    if (phase != Phase::kSeated && phase != Phase::kFinished) continue;
    set_phase(it, Phase::kStopping);
    set_parked(it->second, 0);
    StopRound stop = stop_of(it->second, reason);
    stop.final = final;
    stop.lost_rank = lost_rank;
    stop.waits = waits_for_others();
    if (workers_blamed_ && !final) {
      stop.lost_steps = lost_steps();
      stop.restart = restart_count_;
      stop.max_restarts = config_->max_restarts;
    }
    send(it->first, stop);
  }
}

// The outcome is known. It is sent once the workers are gone, so that the verdict can name the
// victims.
void Run::close(Verdict::Kind kind, int exit_code, const std::string& reason, int lost_rank) {
  DDPRUN_ASSERT(!verdict_ && (gathering() || state_ == State::kRunning));
  const bool success = kind == Verdict::Kind::kSuccess;
  if (success) DDPRUN_ASSERT(state_ == State::kRunning && count(Phase::kSeated) == 0);
  verdict_ = Verdict{.kind = kind, .exit_code = exit_code, .text = reason};
  // Whatever a worker was blamed for before, only the failure that ends the run may be excused.
  if (kind != Verdict::Kind::kWorkerFailed) workers_blamed_ = false;
  if (kind == Verdict::Kind::kWorkerFailed) DDPRUN_ASSERT(workers_blamed_ && !deaths_.empty());
  // A run without nodes has no workers to stop.
  if (!success && config_) stop_seated(reason, /*final=*/true, lost_rank);
  change_.clear();
  state_ = State::kClosing;
  if (success) end();
}

void Run::end() {
  DDPRUN_ASSERT(state_ == State::kClosing && verdict_ && count(Phase::kStopping) == 0);
  if (verdict_->kind == Verdict::Kind::kWorkerFailed) {
    verdict_ =
        worker_verdict(deaths_, restart_count_, config_->max_restarts,
                       {.successes = successes_, .past = past_, .unreachable = unreachable_});
  }
  state_ = State::kEnded;
  workers_blamed_ = false;  // Nothing changes a verdict that has been sent.
  for (const auto& [node, member] : members_) send(node, EndRun{*verdict_});
}

// To a node that is not a member: it was lost, or the run is over.
void Run::answer_stranger(const NodeId& node, int round) {
  // A node that stayed for the others gets the outcome of the run.
  const bool stayed = node == daemon_host_ || step_mates_.contains(node);
  if (dismissed_.contains(node) && (state_ != State::kEnded || !stayed)) {
    return send(node, dismissal(node));
  }
  if (state_ == State::kEnded) return send(node, EndRun{*verdict_});
  // In kClosing the verdict is on its way; a node that is not a member can only wait for it.
  if (state_ == State::kClosing) return send(node, StopRound{round, verdict_->text, true});
  send(node, StopRound{round, "this node was counted as lost", false});
}

void Run::notify_waiting(const NodeId& node, Member& member) {
  DDPRUN_ASSERT(waits_for_seat(member));
  member.roster_notified = roster_;
  Waiting waiting;
  if (state_ != State::kRunning && wait_ends() > now_) {
    waiting.left = std::chrono::duration_cast<Milliseconds>(wait_ends() - now_);
  }
  waiting.text = waiting_text(&member);
  send(node, waiting);
}

// When the nodes that wait are admitted or dismissed.
TimePoint Run::wait_ends() const {
  return state_ == State::kLastCall ? std::min(last_call_ends_, gather_ends_) : gather_ends_;
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
  check_members();
  check_dismissed();
  const bool running = state_ == State::kRunning;
  DDPRUN_ASSERT(running == (seated() > 0) || state_ == State::kEnded);
  DDPRUN_ASSERT(running ? count(Phase::kStopping) == 0 : true);
  DDPRUN_ASSERT(count(Phase::kStopped) == 0 || state_ == State::kClosing ||
                state_ == State::kEnded);
  DDPRUN_ASSERT(verdict_.has_value() == (state_ == State::kClosing || state_ == State::kEnded));
  if (config_) DDPRUN_ASSERT(seated() <= config_->nnodes_max);
  if (config_) DDPRUN_ASSERT(restart_count_ <= config_->max_restarts);
  if (!change_.empty()) DDPRUN_ASSERT(running);
  if (planned_) DDPRUN_ASSERT(keep_);
  DDPRUN_ASSERT(deaths_.size() == dead_ranks_.size());
  if (workers_blamed_) {
    DDPRUN_ASSERT(state_ == State::kClosing || (gathering() && restart_count_ > 0));
    DDPRUN_ASSERT(!verdict_ || verdict_->kind == Verdict::Kind::kWorkerFailed);
  }
  DDPRUN_ASSERT(actions_.empty());
}

// Each member's seat is that of its phase, and what is counted or listed of them is true.
void Run::check_members() const {
  std::array<int, 6> in_phase{};
  int parked = 0;
  for (const auto& [node, member] : members_) {
    ++in_phase[static_cast<std::size_t>(member.phase)];
    const bool waits = member.phase == Phase::kReady || member.phase == Phase::kEmpty;
    DDPRUN_ASSERT(member.seat.has_value() != waits);
    parked += member.parked;
    if (member.parked > 0) DDPRUN_ASSERT(member.phase == Phase::kSeated);
    if (member.seat) DDPRUN_ASSERT(member.seat->round <= round_);
    const bool seated = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
    if (seated) DDPRUN_ASSERT(member.seat->round == round_);
  }
  DDPRUN_ASSERT(in_phase == in_phase_ && parked == parked_);
  DDPRUN_ASSERT(std::ssize(ready_) == count(Phase::kReady));
  for (const NodeId& node : ready_) DDPRUN_ASSERT(members_.at(node).phase == Phase::kReady);
  for (const auto& [rank, node] : node_ranks_)
    DDPRUN_ASSERT(members_.at(node).offer.node_rank == rank);
}

// Drained nodes are on their way out.
void Run::check_dismissed() const {
  for (const auto& [node, why] : dismissed_) {
    const auto it = members_.find(node);
    const bool stops = it != members_.end() && it->second.phase == Phase::kStopping;
    const bool ended = state_ == State::kEnded;  // Before it could leave.
    const bool leaves = it != members_.end() && it->second.seat && (ended || !change_.empty());
    DDPRUN_ASSERT(it == members_.end() || stops || leaves || it->second.phase == Phase::kStopped);
  }
}

// The part of Run that compares the options that the nodes got from their users.

namespace {

constexpr int kWorkersMax = 10'000;      // Of a node; those of all nodes fit an int.
constexpr std::size_t kRefusalsMax = 8;  // That are remembered for the nodes that wait.

std::string nnodes_text(const RunConfig& config) {
  return std::to_string(config.nnodes_min) + ":" + std::to_string(config.nnodes_max);
}

// "1 %", "0.5 %".
std::string percent_of(int per_million) {
  constexpr int kPercent = 10'000;
  std::string text = std::to_string(per_million / kPercent);
  if (const int rest = per_million % kPercent; rest > 0) {
    std::string digits = std::to_string(kPercent + rest).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text + " %";
}

bool has_workers(const NodeOffer& offer) {
  return offer.local_world_size >= 1 && offer.local_world_size <= kWorkersMax;
}

bool makes_sense(const NodeOffer& offer) {
  const RunConfig& config = offer.config;
  return config.nnodes_min >= 1 && config.nnodes_max >= config.nnodes_min &&
         config.max_restarts >= 0 && config.audit_per_million >= 0 &&
         config.audit_per_million <= 1'000'000;
}

// The flag in which an offer differs from a run, as a sentence; nothing if in none.
std::optional<std::string> difference(const NodeOffer& offer, const RunConfig& run,
                                      const std::string& run_from) {
  const auto differs = [&](const std::string& flag, const std::string& runs_value,
                           const std::string& value) {
    return flag + " is " + value + " on " + offer.host + " but " + runs_value + " on " + run_from +
           "; it must be the same on every node";
  };
  if (nnodes_text(offer.config) != nnodes_text(run)) {
    return differs("--nnodes", nnodes_text(run), nnodes_text(offer.config));
  }
  if (offer.config.min_ranks != run.min_ranks) {
    return differs("--min-ranks", std::to_string(run.min_ranks),
                   std::to_string(offer.config.min_ranks));
  }
  if (offer.config.audit_per_million != run.audit_per_million) {
    return differs("--audit", percent_of(run.audit_per_million),
                   percent_of(offer.config.audit_per_million));
  }
  if (offer.config.max_restarts == run.max_restarts) return std::nullopt;
  return differs("--max-restarts", std::to_string(run.max_restarts),
                 std::to_string(offer.config.max_restarts));
}

}  // namespace

// What is wrong with an offer, as a sentence for its node; nothing if it may join.
std::optional<std::string> Run::objection(const NodeId& node, const Join& join) const {
  const NodeOffer& offer = join.offer;
  const bool has_none_yet = join.living && offer.local_world_size == 0;
  if (!has_workers(offer) && !has_none_yet) {
    return "it offers " + number_of(offer.local_world_size, "worker") + "; 1 to " +
           std::to_string(kWorkersMax) + " are possible";
  }
  if (!makes_sense(offer)) return "its --nnodes, --max-restarts or --audit is invalid";
  if (!config_) return std::nullopt;
  if (auto differs = difference(offer, *config_, config_from_)) return differs;
  const auto taken = node_ranks_.find(offer.node_rank);
  if (taken != node_ranks_.end() && taken->second != node) {
    return "--node-rank " + std::to_string(offer.node_rank) + " is already taken by " +
           members_.at(taken->second).offer.host;
  }
  return std::nullopt;
}

// Before the first round the node that hosts the endpoint defines the run, even if another one was
// quicker: if it were refused, its daemon would end, and all other nodes with it.
bool Run::is_overruled_by(const NodeOffer& offer) const {
  if (!offer.hosts_endpoint || !has_workers(offer) || !makes_sense(offer)) return false;
  if (!config_) return false;
  if (!gathering() || round_ > 0) return false;
  const bool has_host = std::any_of(members_.begin(), members_.end(), [](const auto& one) {
    return one.second.offer.hosts_endpoint;
  });
  return !has_host && difference(offer, *config_, config_from_);
}

void Run::overrule(const NodeOffer& host) {
  DDPRUN_ASSERT(gathering() && round_ == 0 && config_);
  std::vector<NodeId> others;
  for (const auto& [node, member] : members_) {
    if (difference(member.offer, host.config, host.host)) others.push_back(node);
  }
  for (const NodeId& node : others) {
    const auto it = members_.find(node);
    const NodeOffer offer = it->second.offer;
    erase(it);
    refuse(node, offer.host, *difference(offer, host.config, host.host));
  }
  config_ = host.config;
  min_ranks_ = host.config.min_ranks;
  config_from_ = host.host;
  size_ = 0;
  gather_ends_ = now_ + config_->join_timeout;
  state_ = State::kGathering;
}

void Run::refuse(const NodeId& node, const std::string& host, const std::string& why) {
  send(node, Refuse{why});
  const std::string what = host + " was refused: " + why;
  if (!gathering() || lost_.size() >= kRefusalsMax) return;
  const std::size_t known = lost_.size();
  note_loss(what);
  if (lost_.size() > known) ++roster_;
}

// The part of Run that lets workers live from round to round: which rounds keep them, how a round
// grows, and which workers that ended without a seat may be replaced.

namespace {

constexpr Milliseconds kGatherGrowth{
    20};  // Replacements and nodes that come together grow it once.
// For the workers of a new node to begin, before a round ends without them to let in others.
constexpr std::chrono::seconds kBeginning{30};
constexpr int kSaneCount = 1'000'000'000;  // Of what an agent counts; no agent gets there.

}  // namespace

// Whether every worker that holds a seat can be seated anew. If some have ended well already, the
// others cannot go on without them: all start again.
bool Run::all_kept() const {
  if (count(Phase::kFinished) > 0) return false;
  return std::all_of(members_.begin(), members_.end(), [](const auto& one) {
    const Member& member = one.second;
    return member.phase != Phase::kSeated ||
           (member.seat->workers > 0 && member.kept == member.seat->workers);
  });
}

// Whether this round began with workers that lived already, all of which can still be kept, beside
// nodes with workers that only begin.
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

// Workers that only begin have no state to lose; their agents stop them.
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

// Whether the node gets messages on what it waits for.
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
    return member.phase == Phase::kSeated ? member.kept > 0 : holds_state(member);
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

// If workers stay, those of a new node begin before the round waits for them; in reserve, too.
void Run::invite_newcomers() {
  DDPRUN_ASSERT(state_ == State::kRunning);
  if (ready_.empty() || !keeps_workers()) return;
  for (const NodeId& node : ready_) {
    Member& member = members_.at(node);
    if (member.prepares && !std::exchange(member.invited, true)) {
      send(node, Prepare{restart_count_});
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

// Ends a round that could have more workers: if they stay, at a boundary between steps.
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
    if (member.phase == Phase::kSeated) send(node, stop_of(member, change_));
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

// A change was planned, and now a rank is gone: the ranks that compute towards the boundary will
// not reach it.
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
    send(node, stop);
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
  // Grants of another daemon, or of this one before it lost the node, are not new.
  member.fallen = std::max(member.fallen, slots.respawned);
  member.granted = std::max(member.granted, slots.respawned);
  const int requested = std::max(slots.fallen - member.fallen, 0);
  member.fallen += requested;
  const bool goes_on = state_ == State::kRunning || gathering();
  const int granted = goes_on ? std::min(requested, config_->max_restarts - restart_count_) : 0;
  restart_count_ += granted;
  member.granted += granted;
  if (requested > granted && goes_on && member.phase == Phase::kEmpty) {
    member.cannot_recover = true;
    give_up_if_too_few(member.offer.host);
  }
  const bool over = state_ == State::kClosing || restart_count_ < config_->max_restarts;
  const int refused = over ? 0 : member.fallen - member.granted;
  DDPRUN_ASSERT(refused >= 0);
  if (member.granted > slots.respawned || refused > 0) {
    send(node, Respawn{member.granted, restart_count_, refused});
  }
}

// Ends the run if the nodes that are left can never be enough; new nodes are not waited for.
void Run::give_up_if_too_few(const std::string& host) {
  if (!gathering()) return;
  int left = count(Phase::kReady) + count(Phase::kStopping);
  for (const auto& [node, member] : members_) {
    left += member.phase == Phase::kEmpty && !member.cannot_recover ? 1 : 0;
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

// Whether the death shows that its node computes wrong, and enough are left without this node. A
// rank that blames another has not computed wrong itself.
bool Run::computes_wrong(const NodeId& node, const WorkerDeath& death) const {
  const bool blames_another = death.blames >= 0 && death.blames != death.rank;
  return death.fault == Fault::kWrongResult && !blames_another && !waits_without(node);
}

// It leaves with its next Join, as a drained one does.
void Run::exclude_wrong(const NodeId& node, const WorkerDeath& death) {
  DDPRUN_ASSERT(members_.at(node).phase == Phase::kStopping);
  dismissed_.try_emplace(
      node, "an audit has found that rank " + std::to_string(death.rank) + " computed wrong there");
}

// A piece of work that has ended two processes is not computed any more.
void Run::skip(const WorkerDeath& death) {
  constexpr std::size_t kMost = 8;  // A few steps; older ones do not matter.
  DDPRUN_ASSERT(death.can_skip);
  const std::string piece = piece_of(death.work);
  if (std::find(skip_.begin(), skip_.end(), piece) != skip_.end()) return;
  skip_.push_back(piece);
  if (skip_.size() > kMost) skip_.erase(skip_.begin());
}

}  // namespace ddprun::rendezvous
