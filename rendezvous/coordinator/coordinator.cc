#include "rendezvous/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/text/screen.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kNameBytesMax = 256;
// How long after a standstill a link that closes may have been closed while it lasted.
constexpr Milliseconds kWakeTime{2000};

bool same_for_all(const DaemonMessage& a, const DaemonMessage& b) {
  const auto* stop = std::get_if<StopRound>(&a);
  const auto* end = std::get_if<EndRun>(&a);
  if (stop && std::holds_alternative<StopRound>(b)) return *stop == std::get<StopRound>(b);
  return end && std::holds_alternative<EndRun>(b) && *end == std::get<EndRun>(b);
}

}  // namespace

void Coordinator::enter(TimePoint now) {
  DDPRUN_ASSERT(now >= now_ && actions_.empty());
  now_ = now;
}

std::vector<LinkAction> Coordinator::on_message(LinkId link, std::string_view body, TimePoint now) {
  enter(now);
  Result<AgentMessage> message = decode_agent_message(body);
  const auto peer = peers_.find(link);
  if (message) ++counters_.messages[message->index()];
  if (!message) {
    const Result<Command> command = decode_command(body);
    if (command && peer == peers_.end()) {
      answer(link, *command);
    } else {
      counters_.refused.add(Refusal::kBadMessage);
      actions_.push_back(Hangup{link, to_string(message.error())});
    }
  } else if (const auto* first = std::get_if<Hello>(&*message)) {
    hello(link, *first);
  } else if (peer == peers_.end()) {
    counters_.refused.add(Refusal::kNoHello);
    actions_.push_back(Hangup{link, "its first message was no hello"});
  } else {
    hear(peer->second, std::move(*message));
  }
  return std::exchange(actions_, {});
}

void Coordinator::hello(LinkId link, const Hello& hello) {
  if (hello.version != kProtocolVersion) {
    return refuse(link, Refusal::kOtherVersion,
                  "it speaks protocol version " + std::to_string(hello.version) +
                      ", this daemon version " + std::to_string(kProtocolVersion) +
                      "; install the same ddprun on every node");
  }
  const bool sane = !hello.run_id.empty() && hello.run_id.size() <= kNameBytesMax &&
                    !hello.node.empty() && hello.node.size() <= kNameBytesMax;
  if (!sane || peers_.contains(link)) {
    return refuse(link, Refusal::kBadHello, "its hello is invalid");
  }
  if (!is_plain_line(hello.run_id)) {
    return refuse(link, Refusal::kBadHello, "its run id has control characters");
  }
  if (!only_run_.empty() && hello.run_id != only_run_) {
    counters_.refused.add(Refusal::kBadHello);
    actions_.push_back(Hangup{link, "it is of run '" + hello.run_id + "', not of this one"});
    return;
  }
  const auto [old, is_new] = links_[hello.run_id].try_emplace(hello.node, link);
  if (!is_new) {  // The same life of the same agent on a new connection: the old one is dead.
    DDPRUN_ASSERT(peers_.contains(old->second));
    peers_.erase(old->second);
    actions_.push_back(Hangup{old->second, "the agent connected again"});
    old->second = link;
  }
  peers_[link] = Peer{hello.run_id, hello.node};
  note_busy(hello.run_id);
  const auto run = runs_.find(hello.run_id);
  if (run != runs_.end() && run->second.misses(hello.node)) {
    step(hello.run_id, {hello.node, Returned{}});
  }
  const Milliseconds beat = run == runs_.end() ? Run().beat() : run->second.beat();
  const Alive alive{.beat = std::max(beat, beat_interval_of(peers_.size())), .keeps = true};
  actions_.push_back(Send{link, encode(DaemonMessage(alive))});
}

void Coordinator::hear(const Peer& peer, AgentMessage message) {
  const auto run = runs_.find(peer.run_id);
  const auto* beat = std::get_if<Heartbeat>(&message);
  if (beat && beat->sync && run != runs_.end() && run->second.knows(peer.node)) {
    sync_[peer.run_id].add(*beat->sync);
  }
  if (beat && run != runs_.end() && run->second.knows(peer.node)) hear_times(peer, *beat);
  const bool joins = std::holds_alternative<Join>(message);
  if (run != runs_.end() && run->second.state() == Run::State::kEnded && joins) {
    // A run id may be used again once everyone of the run before has gone.
    const bool alone = links_.at(peer.run_id).size() == 1;
    if (alone && !run->second.knows(peer.node)) step(peer.run_id, {"", Begin{}});
  }
  std::visit(
      [&](auto& m) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(m)>, Hello>) {
          step(peer.run_id, {peer.node, std::move(m)});
        }
      },
      message);
}

std::vector<LinkAction> Coordinator::on_closed(LinkId link, TimePoint now, bool unseen) {
  enter(now);
  if (awake_since_ != TimePoint::min() && now - awake_since_ < kWakeTime) unseen = true;
  const auto it = peers_.find(link);
  if (it != peers_.end()) {
    const Peer peer = it->second;
    forget_link(it);
    if (const auto run = runs_.find(peer.run_id); run != runs_.end()) {
      if (unseen && run->second.knows(peer.node)) step(peer.run_id, {peer.node, Unseen{}});
      if (!run->second.misses(peer.node)) {
        step(peer.run_id, {peer.node, Lost{"closed its connection", /*closed=*/true}});
      }
    }
    forget_blank(peer.run_id);
  }
  return std::exchange(actions_, {});
}

void Coordinator::forget_link(Peers::iterator it) {
  const auto links = links_.find(it->second.run_id);
  DDPRUN_ASSERT(links != links_.end() && links->second.at(it->second.node) == it->first);
  links->second.erase(it->second.node);
  if (links->second.empty()) links_.erase(links);
  peers_.erase(it);
}

std::vector<LinkAction> Coordinator::on_standstill(Milliseconds how_long, TimePoint now) {
  enter(now);
  awake_since_ = now;
  for (const auto& [run_id, run] : runs_) {
    const bool goes_on = run.state() != Run::State::kEnded && !run.blank();
    if (goes_on) step(run_id, {"", StoodStill{how_long}});
  }
  return std::exchange(actions_, {});
}

std::vector<LinkId> Coordinator::quiet(TimePoint now) const {
  std::vector<LinkId> quiet;
  for (auto it = due_.begin(); it != due_.end() && it->first <= now; ++it) {
    const auto links = links_.find(it->second);
    if (links == links_.end()) continue;
    for (const NodeId& node : runs_.at(it->second).quiet(now)) {
      const auto link = links->second.find(node);
      if (link != links->second.end()) quiet.push_back(link->second);
    }
  }
  return quiet;
}

std::vector<LinkAction> Coordinator::on_reach(LinkId link, const Reach& reach, TimePoint now) {
  enter(now);
  const auto peer = peers_.find(link);
  const auto run = peer == peers_.end() ? runs_.end() : runs_.find(peer->second.run_id);
  if (run == runs_.end()) return {};
  const NodeId& node = peer->second.node;
  if (const auto limit = run->second.reached(node, reach, now)) {
    news_.push_back({run->first, node,
                     "packets take " + std::to_string(reach.round_trip.count()) +
                         " ms to a node and back: it is lost after " +
                         std::to_string(limit->count()) + " ms of silence"});
  }
  return {Send{link, encode(DaemonMessage(Alive{.beat = run->second.beat(), .keeps = true}))}};
}

// A node that is lost while its link is open says again where it stands, on another: what it said
// before it heard of its loss is about a seat that it does not hold any more.
void Coordinator::hang_up(const std::string& run_id, const NodeId& node,
                          const std::string& reason) {
  const auto links = links_.find(run_id);
  if (links == links_.end()) return;
  const auto link = links->second.find(node);
  if (link == links->second.end()) return;
  const LinkId id = link->second;
  forget_link(peers_.find(id));
  actions_.push_back(Hangup{id, reason});
}

std::vector<LinkAction> Coordinator::on_tick(TimePoint now) {
  enter(now);
  std::vector<std::string> due_runs;
  for (auto it = due_.begin(); it != due_.end() && it->first <= now; ++it) {
    due_runs.push_back(it->second);
  }
  for (const std::string& run_id : due_runs) {
    Run& run = runs_.at(run_id);
    for (Run::Silent& silent : run.silent(now)) {
      hang_up(run_id, silent.node, "its node " + silent.how);
      step(run_id, {silent.node, Lost{std::move(silent.how)}});
    }
    if (const auto due = run.deadline(); due && *due <= now) step(run_id, {"", Tick{}});
    schedule(run_id, run);
  }
  forget_idle();
  return std::exchange(actions_, {});
}

std::vector<LinkAction> Coordinator::on_shutdown(int signal, TimePoint now) {
  enter(now);
  for (auto& [run_id, run] : runs_) {
    step(run_id, {"", Cancel{signal, "the rendezvous daemon was told to end"}});
  }
  return std::exchange(actions_, {});
}

std::vector<LinkAction> Coordinator::farewell() const {
  std::vector<LinkAction> actions;
  for (const auto& [link, peer] : peers_) {
    const auto run = runs_.find(peer.run_id);
    Alive alive{.beat = (run == runs_.end() ? Run() : run->second).beat(), .keeps = true};
    alive.last = true;
    actions.push_back(Send{link, encode(DaemonMessage(alive))});
  }
  return actions;
}

void Coordinator::step(const std::string& run_id, const RunEvent& event) {
  DDPRUN_ASSERT(!run_id.empty());
  Run& run = runs_[run_id];
  run.set_beat_floor(beat_interval_of(peers_.size()));
  std::optional<StepWatch> watch;  // Heartbeats are many and change nothing.
  if (!std::holds_alternative<Heartbeat>(event.what)) {
    const std::string record = encode_record(Record{run_id, now_, event});
    ++counters_.records;
    counters_.record_bytes += record.size();
    records_ += record;
    watch.emplace(run, event);
    note_event(run_id, run, event);
  }
  const Run::State state_before = run.state();
  const std::size_t news_before = news_.size();
  std::vector<RunAction> actions = run.step(event, now_);
  if (watch) watch->take(run_id, run, now_, counters_, news_);
  note_change(run_id, run, state_before);
  note_news(news_before);
  note_end(run_id, run, state_before);
  schedule(run_id, run);
  if (!std::holds_alternative<Heartbeat>(event.what)) compare_waiting(run_id);
  note_idle(run_id, run);
  const auto links = links_.find(run_id);
  if (links == links_.end()) return;
  const DaemonMessage* said = nullptr;  // What all nodes are told is written out once.
  std::string body;
  for (RunAction& action : actions) {
    const auto link = links->second.find(action.node);
    if (link == links->second.end()) continue;
    add_ledger(run_id, run, action);
    if (!said || !same_for_all(*said, action.message)) body = encode(action.message);
    said = &action.message;
    actions_.push_back(Send{link->second, body});
  }
}

void Coordinator::schedule(const std::string& run_id, const Run& run) {
  const auto due = run.deadline();
  const auto known = due_of_.find(run_id);
  if (known != due_of_.end()) {
    if (due == known->second) return;
    due_.erase({known->second, run_id});
    due_of_.erase(known);
  }
  if (!due) return;
  due_.emplace(*due, run_id);
  due_of_.emplace(run_id, *due);
  DDPRUN_ASSERT(due_.size() == due_of_.size());
}

void Coordinator::refuse(LinkId link, Refusal refusal, const std::string& reason) {
  counters_.refused.add(refusal);
  actions_.push_back(Send{link, encode(DaemonMessage(Refuse{reason}))});
  actions_.push_back(Hangup{link, reason});
}

std::optional<TimePoint> Coordinator::deadline() const {
  const auto forget = forget_at();
  if (due_.empty()) return forget;
  return std::min(due_.begin()->first, forget.value_or(TimePoint::max()));
}

std::string Coordinator::take_records() { return std::exchange(records_, {}); }

bool Coordinator::over() const {
  if (!peers_.empty()) return false;
  bool any = false;
  for (const auto& [run_id, run] : runs_) {
    if (run.state() != Run::State::kEnded) return false;
    any = true;
  }
  return any;
}

}  // namespace ddprun::rendezvous
