#include "rendezvous/run/run.h"

#include <signal.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/seats.h"
#include "rendezvous/run/verdict.h"

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
    // If thousands come at once, no person can read each message; heartbeats will be answered so.
    if (waits && !many()) notify_waiting(it->first, it->second);
  }
  return std::exchange(actions_, {});
}

// The handlers below note which nodes are in and what happened to them. Every move from state to
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

// The nodes of the next round: first those that have the newest state of the job, which others may
// have from an earlier round, then those of the round before.
std::vector<Run::Members::const_iterator> Run::chosen() const {
  DDPRUN_ASSERT(count(Phase::kReady) >= config_->nnodes_min);
  std::vector<Members::const_iterator> ready;
  const bool kept = keep_ && living_are_enough();
  for (const NodeId& node : ready_) {
    const auto it = members_.find(node);
    // Those that live do not wait for workers that only begin.
    if (!kept || it->second.living || !it->second.prepares) ready.push_back(it);
  }
  int newest = -1;
  for (const auto& it : ready) {
    if (holds_state(it->second)) newest = std::max(newest, it->second.after_round);
  }
  const auto key = [&](const Member& member) {
    const bool goes_on = holds_state(member) && member.after_round == newest;
    return std::tuple(!goes_on, member.group_rank_before < 0, member.arrival);
  };
  std::sort(ready.begin(), ready.end(),
            [&](auto a, auto b) { return key(a->second) < key(b->second); });
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
  place_data(offers, seats);
  place_copies(ordered, seats);
  // The state of the job goes on with any of its holders.
  const bool is_held = std::any_of(ordered.begin(), ordered.end(),
                                   [](const auto& it) { return holds_state(it->second); });
  const std::int64_t lost_steps = is_held ? 0 : std::exchange(kept_steps_, 0);
  const LostWork lost_work = work_of_failure();
  for (std::size_t i = 0; i < seats.size(); ++i) {
    auto& [node, member] = *ordered[i];
    seats[i].skip = skip_;
    seats[i].lost_work = lost_work;
    seats[i].lost_steps = lost_steps;
    seats[i].master_node = ordered.front()->first;
    set_phase(ordered[i], Phase::kSeated);
    member.group_rank_before = seats[i].group_rank;
    member.seat = seats[i];
    member.kept = member.living ? seats[i].workers : 0;
    send(node, Assign{seats[i]});
  }
  state_ = State::kRunning;
  ++roster_;
  forget_last_round();
}

// Over another network than the one of the nodes' names, if that is slow.
void Run::place_data(const std::vector<const NodeOffer*>& offers, std::vector<Seat>& seats) const {
  std::vector<NetworksOfNode> nodes;
  for (const NodeOffer* offer : offers)
    nodes.push_back({offer->host, offer->address, offer->networks});
  DataNetwork chosen = choose_data_network(nodes);
  seats.front().data_why = std::move(chosen.why);
  seats.front().data_warns = chosen.warns;
  for (std::size_t i = 0; i < chosen.places.size(); ++i) {
    const std::size_t before = (i + seats.size() - 1) % seats.size();
    if (seats[before].neighbour) seats[before].neighbour->address = chosen.places[i].address;
    seats[i].data = std::move(chosen.places[i]);
  }
}

void Run::place_copies(const std::vector<Members::iterator>& nodes, std::vector<Seat>& seats) {
  std::vector<MemoryPeer> with_memory;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeOffer& offer = nodes[i]->second.offer;
    if (!offer.memory_port) continue;
    const std::string& address = seats[i].data ? seats[i].data->address : offer.address;
    with_memory.push_back({nodes[i]->first, offer.host, address, *offer.memory_port});
    places.push_back(i);
  }
  const std::vector<MemoryCopies::Order> orders = memory_copies_.seal(with_memory);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    seats[places[i]].copy_to = orders[i].copy_to;
    seats[places[i]].fill = orders[i].fill;
  }
}

namespace {

// Of the program, such as a MemoryError, or of ddprun. Its message has explained the end.
bool is_by_exception(const WorkerDeath& death) {
  if (death.fault == Fault::kException) return true;
  const bool is_explained = death.fault != Fault::kUnknown && death.fault != Fault::kExit &&
                            death.fault != Fault::kCrash && death.fault != Fault::kStuck;
  return is_explained && (death.signal == 0 ? death.exit_code == 1 : death.signal == SIGABRT);
}

}  // namespace

// For a bundle of it, which a rank of the next round writes (docs/replay.md). A rank that ends by
// an exception has written its bundle itself.
LostWork Run::work_of_failure() const {
  if (!workers_blamed_ || deaths_.empty()) return {};
  const WorkerDeath death = first_cause(deaths_, successes_).death;
  if (death.work.empty() || is_by_exception(death)) return {};
  return {.work = death.work,
          .who = "rank " + std::to_string(death.rank) + " on " + death.host,
          .how = how_it_ended(death)};
}

// But for the cause of its failure.
void Run::forget_last_round() {
  remember_failure();
  deaths_.clear();
  first_death_ = {};
  dead_ranks_.clear();
  successes_.clear();
  unreachable_.clear();
  lost_.clear();
  grow_at_.reset();
  workers_blamed_ = false;
}

// Run's event handlers, one per event. None of them moves the run from state to state; advance()
// does, afterwards. What they do at once is stop a round that cannot go on.

namespace {

constexpr int kRoundsMax = 1'000'000'000;  // No run gets there by itself.
constexpr int kBeatsToAnAnswer = 3;        // An agent gives up after twice kBeatsInTimeout.

}  // namespace

void Run::on(const NodeId& node, const Join& join) {
  const auto it = members_.find(node);
  if (it != members_.end() && join.serial != 0 && join.serial < it->second.serial) {
    return;  // A newer message has already arrived.
  }
  note_kept(join.kept_steps);
  if (state_ == State::kClosing && it != members_.end()) {
    // It has no workers, unless this message is old; it will get the verdict with the others.
    const Member& member = it->second;
    if (member.seat && join.after_round >= member.seat->round) set_phase(it, Phase::kStopped);
    return;
  }
  if (state_ == State::kClosing || state_ == State::kEnded) return answer_stranger(node, -1);
  if (it != members_.end() && it->second.seat && join.after_round < it->second.seat->round) {
    // It sent this before it learnt of its seat, or has lost what we sent since.
    const Member& member = it->second;
    if (member.phase != Phase::kStopping) return send(node, Assign{*member.seat});
    return send(node, stop_of(member, "the round is over"));
  }
  if (dismissed_.contains(node)) {
    return it == members_.end() ? answer_stranger(node, -1) : rejoin_dismissed(it, join);
  }
  if (join.after_round > std::max(round_, kRoundsMax)) {
    return refuse(node, join.offer.host, "no run has had the round that it comes from");
  }
  if (is_overruled_by(join.offer)) overrule(join.offer);
  if (const auto why = objection(node, join)) return refuse(node, join.offer.host, *why);
  admit(node, join);
}

void Run::admit(const NodeId& node, const Join& join) {
  DDPRUN_ASSERT(gathering() || state_ == State::kRunning);
  DDPRUN_ASSERT(!dismissed_.contains(node));
  DDPRUN_ASSERT(join.after_round <= std::max(round_, kRoundsMax));
  if (!config_) {
    config_ = join.offer.config;
    raise_min_ranks(config_->min_ranks);
    config_from_ = join.offer.host;
    gather_ends_ = now_ + config_->join_timeout;
  }
  const auto [it, is_new] = members_.try_emplace(node);
  Member& member = it->second;
  if (is_new) {
    member.arrival = arrivals_++;
    ++in_phase_[static_cast<std::size_t>(member.phase)];
    member.beat = member.heartbeat_acknowledged = beat();
    const auto lost = std::find_if(lost_grants_.begin(), lost_grants_.end(),
                                   [&](const LostGrant& one) { return one.node == node; });
    if (lost != lost_grants_.end()) {
      member.fallen = lost->fallen, member.granted = lost->granted;
      lost_grants_.erase(lost);
    }
    if (!silence_check_) silence_check_ = now_ + config_->heartbeat_timeout / 2;
  }
  // A daemon that forgot everything must not number a round as one its nodes remember.
  if (gathering()) round_ = std::max(round_, join.after_round + 1);
  const bool left_its_seat = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
  take_offer(it, join.offer);
  member.missing = member.cannot_recover = false;
  member.last_seen = now_;
  member.seat.reset();
  member.living = join.living;
  member.holders = join.living ? join.holders : 0;
  member.after_round = join.after_round;
  raise_min_ranks(join.min_ranks);
  member.prepares = join.prepares && !join.living;
  member.invited = false;
  member.beginning = join.living ? std::clamp(join.beginning, 0, kParkedMax) : 0;
  member.serial = std::max(member.serial, join.serial);
  set_parked(member, 0);
  member.spares = 0;
  set_phase(it, join.offer.local_world_size > 0 ? Phase::kReady : Phase::kEmpty);
  ++roster_;
  if (!left_its_seat) return;
  // If all leave, this is the first node to do so; else its workers are gone unexpectedly, and the
  // others cannot go on without them.
  if (join.living && !change_.empty()) return regather(change_, -1, /*planned=*/true);
  regather(member.offer.host + " joined again");
}

// A heartbeat names the seat that its node holds, so that a lost message is repaired by the next
// one.
void Run::on(const NodeId& node, const Heartbeat& heartbeat) {
  const auto it = members_.find(node);
  if (it == members_.end() || state_ == State::kEnded)
    return answer_stranger(node, heartbeat.round);
  Member& member = it->second;
  member.last_seen = now_;
  member.beat = std::max(beat(), member.heartbeat_acknowledged);
  member.heartbeat_acknowledged = beat();
  // If beats are rare because there are many nodes, an answer to some of them is enough.
  if (!many() || ++member.unanswered >= kBeatsToAnAnswer) {
    member.unanswered = 0;
    send(node,
         Alive{member.heartbeat_acknowledged, state_ == State::kRunning && has_spares(), true});
  }
  const bool right = member.seat ? heartbeat.round == member.seat->round : heartbeat.round == -1;
  if (member.phase == Phase::kSeated && !right) return send(node, Assign{*member.seat});
  if (member.phase == Phase::kSeated && !change_.empty()) {
    return send(node, stop_of(member, change_));
  }
  if (member.phase == Phase::kStopping && right) {
    return send(node, stop_of(member, "the round is over"));
  }
  if (!member.seat && !right) {
    StopRound stop{heartbeat.round, "the round is over", false};
    stop.keep = member.living;
    return send(node, stop);
  }
  if (waits_for_seat(member) && member.roster_notified != roster_)
    return notify_waiting(node, member);
}

void Run::on(const NodeId& node, const Finished& finished) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, finished.round);
  Member& member = it->second;
  if (!member.seat || member.seat->round != finished.round) return;
  if (member.phase == Phase::kSeated) {
    set_parked(member, 0);
    return set_phase(it, Phase::kFinished);
  }
  // It has not left the round at the same boundary as the others. So its workers are started again.
  if (member.phase != Phase::kStopping || !planned_) return;
  StopRound stop = stop_of(member, "the round is over");
  stop.planned = false;
  send(node, stop);
}

void Run::on(const NodeId& node, const Failed& failed) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, failed.round);
  if (!it->second.seat || it->second.seat->round != failed.round) return;
  const bool lacked = workers_blamed_ && lacks_cause(deaths_, successes_);
  report_failed(failed);
  report_unreachable(failed.unreachable);
  if (lacked) report_cause(node);
  const bool changing = state_ == State::kGathering && planned_;
  const bool wrong = computes_wrong(node, failed.death);
  if (state_ != State::kRunning && !changing) {  // A victim, or workers that are being stopped.
    const bool stops = gathering() && it->second.phase == Phase::kStopping;
    if (wrong && stops) exclude_wrong(node, failed.death);  // Of several that compute wrong.
    return;
  }
  std::string reason = "rank " + std::to_string(failed.death.rank) + " on " + failed.death.host +
                       " " + how_it_ended(failed.death);
  const bool poison = is_poison(past_, failed.death);
  if (poison && failed.death.can_skip) {
    skip(failed.death);
    reason += "; skipping " + failed.death.work + ", which has ended two processes";
  }
  workers_blamed_ = true;
  if (restart_count_ < config_->max_restarts && (!poison || failed.death.can_skip)) {
    ++restart_count_;
    if (!wrong) reason += successor_text(it->second);
    changing ? hurry(reason, failed.death.rank) : regather(reason, failed.death.rank);
    if (wrong) exclude_wrong(node, failed.death);
  } else {
    close(Verdict::Kind::kWorkerFailed, 0, reason, failed.death.rank);
  }
}

void Run::on(const NodeId& node, const Stopped& stopped) {
  const auto it = members_.find(node);
  if (it == members_.end()) {
    // If we have ordered a stranger to stop, this is its answer to that.
    if (state_ == State::kEnded || dismissed_.contains(node)) answer_stranger(node, stopped.round);
    return;
  }
  Member& member = it->second;
  if (!member.seat || member.seat->round != stopped.round) return;
  const bool lacked = workers_blamed_ && lacks_cause(deaths_, successes_);
  for (const WorkerDeath& death : stopped.deaths) report(death);
  for (const WorkerDeath& success : stopped.successes) report_success(success);
  report_unreachable(stopped.unreachable);
  if (lacked) report_cause(node);
  // Between rounds the node's Join has the same meaning; only the end of the run waits for this
  // message.
  if (state_ == State::kClosing) set_phase(it, Phase::kStopped);
}

void Run::on(const NodeId& node, const Leave& leave) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  const std::string& host = it->second.offer.host;
  if (leave.planned) return take_out(node, leave.reason, host + " leaves: " + leave.reason);
  const std::string how = "left: " + leave.reason, text = host + " " + how;
  const bool fixed = config_->nnodes_min == config_->nnodes_max;
  const bool active = gathering() || state_ == State::kRunning;
  if (fixed && it->second.phase != Phase::kFinished && leave.signal != 0) {
    // A failure during an interruption is not its cause, even if its report arrives first.
    const bool blamed = std::exchange(workers_blamed_, false);
    const int code = exit_code_of_signal(leave.signal);
    if (active) {
      close(Verdict::Kind::kInterrupted, code, text);
    } else if (blamed) {
      DDPRUN_ASSERT(state_ == State::kClosing);
      verdict_ = {.kind = Verdict::Kind::kInterrupted, .exit_code = code, .text = text};
    }
  }
  lose(members_.find(node), how);
}

void Run::on(const NodeId& node, const Lost& lost) {
  if (const auto it = members_.find(node); it != members_.end()) lose(it, lost.how);
}

void Run::on(const NodeId&, const Tick&) {
  if (count(Phase::kStopping) > 0 && now_ >= stop_ends_) lose_stuck();
}

void Run::on(const NodeId&, const Begin&) {
  DDPRUN_ASSERT(state_ == State::kEnded);
  forget();
}

void Run::forget() {
  const TimePoint now = now_;
  *this = Run();
  now_ = now;
}

void Run::on(const NodeId&, const Cancel& cancel) {
  workers_blamed_ = false;  // A run that closes already must not open again.
  if (state_ == State::kClosing || state_ == State::kEnded) return;
  close(Verdict::Kind::kInterrupted, exit_code_of_signal(cancel.signal), cancel.reason);
}

void Run::on(const NodeId& node, const Drain& drain) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  // "drained by root@head: bad fan", or whatever another client sends.
  const bool named = drain.reason.starts_with("drained ");
  take_out(node, drain.reason,
           it->second.offer.host + (named ? " is " : " is drained: ") + drain.reason);
}

// Nodes that are not needed any more keep their workers, in reserve.
void Run::on(const NodeId&, const Resize& resize) {
  if (!config_ || state_ == State::kClosing || state_ == State::kEnded) return;
  if (resize.nodes < config_->nnodes_min || resize.nodes > config_->nnodes_max) return;
  size_ = resize.nodes;
  ++roster_;
  const bool ends = !change_.empty() || count(Phase::kFinished) > 0;
  if (state_ != State::kRunning || seated() <= size_ || ends) return;
  const std::string change = "resized to " + number_of(size_, "node") + ": " + resize.reason;
  all_kept() ? announce_change(change) : regather(change);
}

// The part of Run that collects which workers died in a round, and which one was first.
void Run::note_kept(std::int64_t steps) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  kept_steps_ = std::clamp(steps, kept_steps_, kMost);
}

void Run::report(const WorkerDeath& death) {
  note_kept(death.kept_steps);
  constexpr std::size_t kDetailsMax = 1000;  // The last words of more do not help.
  if (!dead_ranks_.insert(death.rank).second) {
    // The first report may come before its agent knows why.
    for (WorkerDeath& known : deaths_) {
      const bool is_brief = known.fault == Fault::kUnknown || known.detail.empty();
      const bool is_better = is_brief && death.fault != Fault::kUnknown;
      if (known.rank == death.rank && is_better) known = death;
    }
    return;
  }
  deaths_.push_back(death);
  if (deaths_.size() > kDetailsMax) std::string().swap(deaths_.back().detail);
}

// Deaths count in the order of their reports, because clocks of hosts are not compared; but the
// agents of one host have one clock.
void Run::report_failed(const Failed& failed) {
  const std::size_t known = deaths_.size();
  report(failed.death);
  if (deaths_.size() == known) return;
  const bool same_clock = !failed.clock.empty() && failed.clock == first_death_.clock;
  const bool is_first = known == 0 || (same_clock && failed.noticed < first_death_.noticed);
  if (!is_first) return;
  first_death_ = {failed.noticed, failed.clock};
  std::rotate(deaths_.begin(), deaths_.end() - 1, deaths_.end());
}

void Run::report_success(const WorkerDeath& success) {
  constexpr std::size_t kMost = 1000;
  const bool known = std::any_of(successes_.begin(), successes_.end(),
                                 [&](const auto& other) { return other.rank == success.rank; });
  if (!known && successes_.size() < kMost) successes_.push_back(success);
}

void Run::report_unreachable(const std::string& what) {
  constexpr std::size_t kMost = 3;  // Two directions, and one more link.
  const bool is_known =
      std::find(unreachable_.begin(), unreachable_.end(), what) != unreachable_.end();
  if (!what.empty() && !is_known && unreachable_.size() < kMost) unreachable_.push_back(what);
}

// No node has to wait any longer for workers that have left their group.
void Run::report_cause(const NodeId& reporter) {
  if (keep_ || lacks_cause(deaths_, successes_)) return;
  for (const auto& [node, member] : members_) {
    if (member.phase != Phase::kStopping || node == reporter) continue;
    send(node, stop_of(member, "the cause is known"));
  }
}

// The next round is sealed. If a worker's failure was why, it may be one of several alike.
void Run::remember_failure() {
  constexpr std::size_t kMost = 16;
  if (!workers_blamed_ || deaths_.empty()) return;
  past_.push_back(remembered(first_cause(deaths_, successes_)));
  if (past_.size() > kMost) past_.erase(past_.begin());
}

// The part of Run that distinguishes silence from loss: how often nodes send heartbeats, which are
// silent or expected back, and what a standstill of the daemon means.

namespace {

constexpr Milliseconds kReturnTime{10'000};  // For agents to find a daemon that is back.
// A kernel gives a packet's time in ticks of its clock, which may be a little too early.
constexpr Milliseconds kKernelTicks{20};

}  // namespace

Milliseconds Run::beat() const {
  const RunConfig config = config_.value_or(RunConfig());
  // Those that will come count too, else the first ones beat too often while the others join.
  const std::size_t nodes = std::max(members_.size(), static_cast<std::size_t>(config.nnodes_min));
  return std::max({beat_interval(config.heartbeat_timeout), beat_floor_, beat_interval_of(nodes)});
}

// A node that has to send fewer heartbeats gets more time, and so does a distant one.
Milliseconds Run::patience(const Member& member) const {
  DDPRUN_ASSERT(config_);
  return std::max({config_->heartbeat_timeout, kBeatsInTimeout * member.beat,
                   kRoundTripsInSilence * member.round_trip});
}

std::vector<NodeId> Run::quiet(TimePoint now) const {
  std::vector<NodeId> quiet;
  if (!silence_check_ || now < *silence_check_ || state_ == State::kEnded) return quiet;
  for (const auto& [node, member] : members_) {
    if (!member.missing && now - member.last_seen >= patience(member) / 2) quiet.push_back(node);
  }
  return quiet;
}

std::optional<Milliseconds> Run::reached(const NodeId& node, const Reach& reach, TimePoint now) {
  const auto it = members_.find(node);
  if (it == members_.end()) return std::nullopt;
  Member& member = it->second;
  const Milliseconds before = patience(member);
  member.round_trip = reach.round_trip;
  // The caller sends it something now. The age of its last answer alone means nothing: while we
  // were late nothing was sent that it could have answered.
  if (!member.asked || reach.answered + kKernelTicks >= *member.asked) member.asked = now;
  const Milliseconds wanted = std::max(config_->heartbeat_timeout, kBeatsInTimeout * member.beat);
  const Milliseconds limit = patience(member);
  return limit > wanted && before <= wanted ? std::optional(limit) : std::nullopt;
}

std::vector<Run::Silent> Run::silent(TimePoint now) {
  if (!silence_check_ || now < *silence_check_) return {};
  if (members_.empty() || state_ == State::kEnded) {
    silence_check_.reset();
    return {};
  }
  std::vector<Silent> silent;
  TimePoint next = now + config_->heartbeat_timeout;
  for (const auto& [node, member] : members_) {
    const Milliseconds limit = patience(member);
    const Milliseconds longest = std::max(limit, config_->standstill_timeout);
    const Duration silence = now - member.last_seen;
    // A kernel that is there has long since answered the query at half of the limit.
    const bool answers = !member.missing && member.asked && now - *member.asked < limit * 3 / 8;
    if (silence < limit || (answers && silence < longest)) {
      next = std::min(next, check_at(member, now));
    } else {
      const Milliseconds over = answers ? longest : limit;
      silent.push_back({node, member.missing
                                  ? "did not come back"
                                  : "was silent for " + std::to_string(over.count()) + " ms" +
                                        (answers ? ", though its host answers" : "")});
    }
  }
  silence_check_ = next;
  return silent;
}

// When something may have to be done about a member's silence.
TimePoint Run::check_at(const Member& member, TimePoint now) const {
  const Milliseconds limit = patience(member);
  if (member.missing) return member.last_seen + limit;
  if (now - member.last_seen < limit / 2) return member.last_seen + limit / 2;
  const TimePoint soon = now + limit / kBeatsInTimeout;
  return now - member.last_seen < limit ? std::min(member.last_seen + limit, soon) : soon;
}

bool Run::misses(const NodeId& node) const {
  const auto it = members_.find(node);
  return it != members_.end() && it->second.missing;
}

// It has no connection, and is not lost: it gets time to come back, once.
void Run::expect_back(Member& member, Milliseconds within) {
  if (std::exchange(member.missing, true)) return;
  const Milliseconds time = std::max({kReturnTime, within, 3 * kBeatsInTimeout * beat()});
  member.last_seen = now_ + time;
  // A node that has stopped its workers meanwhile could not report it.
  if (member.phase == Phase::kStopping) stop_ends_ = std::max(stop_ends_, now_ + time);
}

void Run::on(const NodeId& node, const Away&) {
  const auto it = members_.find(node);
  // After the end a node that goes is gone; if it does come back it gets the verdict.
  if (it == members_.end() || state_ == State::kEnded) return;
  expect_back(it->second, config_->standstill_timeout);
}

void Run::on(const NodeId& node, const Unseen&) {
  const auto it = members_.find(node);
  if (it != members_.end() && state_ != State::kEnded) expect_back(it->second, kReturnTime);
}

void Run::on(const NodeId&, const Recovered&) {
  // Nodes need time to find us again, and report their state when they have. A node that did not
  // come back to our predecessor gets no more time from us.
  for (auto& [node, member] : members_) expect_back(member, kReturnTime);
  if (config_ && gathering()) gather_ends_ = now_ + config_->join_timeout;
}

void Run::on(const NodeId& node, const Returned&) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  it->second.missing = false;
  it->second.last_seen = now_;
}

// Whatever was due in 5 s is due in 5 s. Nodes may have stood still with us and may wake a little
// later: after a long standstill they have all of their time again.
void Run::on(const NodeId&, const StoodStill& still) {
  if (!config_ || state_ == State::kEnded) return;
  gather_ends_ += still.how_long;
  last_call_ends_ += still.how_long;
  stop_ends_ += still.how_long;
  if (grow_at_) *grow_at_ += still.how_long;
  for (auto& [node, member] : members_) {
    const bool anew = !member.missing && still.how_long >= config_->heartbeat_timeout;
    member.last_seen = anew ? now_ : member.last_seen + still.how_long;
    if (!member.missing) member.last_seen = std::min(member.last_seen, now_);
    member.asked.reset();  // Our kernel may have missed the answer of the other one meanwhile.
  }
}

}  // namespace ddprun::rendezvous
