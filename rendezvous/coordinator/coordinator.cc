#include "rendezvous/coordinator/coordinator.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/assert.h"
#include "common/release.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {
namespace {

// How long after a standstill a link that closes may have been closed while it lasted.
constexpr Milliseconds kWakeTime{2000};

bool same_for_all(const DaemonMessage& a, const DaemonMessage& b) {
  const auto* stop = std::get_if<StopRound>(&a);
  const auto* end = std::get_if<EndRun>(&a);
  if (stop && std::holds_alternative<StopRound>(b)) return *stop == std::get<StopRound>(b);
  return end && std::holds_alternative<EndRun>(b) && *end == std::get<EndRun>(b);
}

// A link that comes from an address which its node does not see as that link's was translated on
// its way.
void note_translation(const std::string& from, NodeOffer& offer) {
  const bool is_translated =
      !from.empty() && !offer.link_address.empty() && from != offer.link_address;
  offer.seen_at = is_translated ? from : "";
  offer.link_address.clear();
}

}  // namespace

void Coordinator::enter(TimePoint now) {
  DDPRUN_ASSERT(now >= now_ && actions_.empty());
  now_ = now;
}

std::vector<LinkAction> Coordinator::on_message(LinkId link, std::string_view body, TimePoint now,
                                                std::string_view from) {
  enter(now);
  Result<AgentMessage> message = decode_agent_message(body);
  const auto peer = peers_.find(link);
  if (message) ++counters_.messages[message->index()];
  if (!message && peer != peers_.end()) {
    refuse_unreadable(Peer(peer->second), link, message.error());
  } else if (!message) {
    const Result<Command> command = decode_command(body);
    const Result<RelayRequest> relay = decode_relay_request(body);
    if (command) {
      answer(link, *command);
    } else if (relay) {
      const auto* wanted = std::get_if<Dial>(&*relay);
      wanted ? dial(link, *wanted) : meet(link, std::get<Meet>(*relay));
    } else {
      counters_.refused.add(Refusal::kBadMessage);
      actions_.push_back(Hangup{link, to_string(message.error())});
    }
  } else if (const auto* first = std::get_if<Hello>(&*message)) {
    hello(link, *first, from);
  } else if (peer == peers_.end()) {
    counters_.refused.add(Refusal::kNoHello);
    actions_.push_back(Hangup{link, "its first message was no hello"});
  } else {
    receive(peer->second, std::move(*message));
  }
  return std::exchange(actions_, {});
}

void Coordinator::hello(LinkId link, const Hello& hello, std::string_view from) {
  if (hello.version != kProtocolVersion) {
    return refuse(link, Refusal::kOtherVersion,
                  "it speaks protocol version " + std::to_string(hello.version) +
                      ", this daemon version " + std::to_string(kProtocolVersion) +
                      "; install the same ddprun on every node");
  }
  const bool sane = !hello.run_id.empty() && hello.run_id.size() <= kNameBytesMax &&
                    !hello.node.empty() && hello.node.size() <= kNameBytesMax;
  if (!sane || peers_.contains(link) || relays_.contains(link)) {
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
  peers_[link] = Peer{hello.run_id, hello.node, hello.release.substr(0, kNameBytesMax),
                      hello.relays, std::string(from)};
  note_busy(hello.run_id);
  const auto run = runs_.find(hello.run_id);
  if (run != runs_.end() && run->second.misses(hello.node)) {
    step(hello.run_id, {hello.node, Returned{}});
  }
  const Milliseconds beat = run == runs_.end() ? Run().beat() : run->second.beat();
  const Alive alive{
      .beat = std::max(beat, beat_interval_of(peers_.size())), .keeps = true, .release = release()};
  actions_.push_back(Send{link, encode(DaemonMessage(alive))});
}

void Coordinator::receive(const Peer& peer, AgentMessage message) {
  const auto run = runs_.find(peer.run_id);
  const auto* beat = std::get_if<Heartbeat>(&message);
  if (beat && beat->sync && run != runs_.end() && run->second.has_node(peer.node)) {
    sync_[peer.run_id].add(*beat->sync);
  }
  if (beat && run != runs_.end() && run->second.has_node(peer.node)) take_times(peer, *beat);
  auto* join = std::get_if<Join>(&message);
  if (join) note_translation(peer.from, join->offer);
  if (run != runs_.end() && run->second.state() == Run::State::kEnded && join) {
    // A run id may be used again once all nodes of the run before have gone. One that was in a
    // round of it and was lost, or was dismissed before it had a seat, may come after its end: it
    // gets the verdict, and begins nothing.
    const bool alone = links_.at(peer.run_id).size() == 1 && !run->second.has_node(peer.node);
    const bool was_seated = join->after_round >= 0 && join->after_round <= run->second.round();
    const bool was_in_it = was_seated || run->second.has_dismissed(peer.node);
    if (alone && !was_in_it) step(peer.run_id, {"", Begin{}});
  }
  std::visit(
      [&](auto& m) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(m)>, Hello>) {
          step(peer.run_id, {peer.node, std::move(m)});
        }
      },
      message);
}

// An agent of another ddprun, which sends what this one cannot read. It would send the same on the
// next connection: its node is out of the run, and is lost once.
void Coordinator::refuse_unreadable(const Peer& peer, LinkId link, const Failure& why) {
  counters_.refused.add(Refusal::kBadMessage);
  const std::string theirs = release_text(peer.release), ours = release_text(release());
  actions_.push_back(Send{
      link, encode(DaemonMessage(Refuse{"the daemon (" + ours + ") cannot read what this node (" +
                                        theirs + ") has sent (" + why.context +
                                        "); install the same ddprun on every node"}))});
  const std::string how =
      "sent what the daemon (" + ours + ") cannot read (" + why.context + "); it has " + theirs;
  hang_up(peer.run_id, peer.node, how);
  lose(peer.run_id, peer.node, how);
}

// Nothing of a run changes, and nothing is recorded, when a node goes that has not joined it.
void Coordinator::lose(const std::string& run_id, const NodeId& node, const std::string& how) {
  const auto run = runs_.find(run_id);
  if (run == runs_.end()) return;
  if (run->second.has_node(node)) {
    step(run_id, {node, Lost{how, /*closed=*/true}});
  } else {
    note_idle(run_id, run->second);
  }
  forget_blank(run_id);
}

std::vector<LinkAction> Coordinator::on_closed(LinkId link, TimePoint now, bool unseen) {
  enter(now);
  if (awake_since_ != TimePoint::min() && now - awake_since_ < kWakeTime) unseen = true;
  relays_.forget(link);
  const auto it = peers_.find(link);
  if (it != peers_.end()) {
    const Peer peer = it->second;
    forget_link(it);
    if (const auto run = runs_.find(peer.run_id); run != runs_.end()) {
      if (unseen && run->second.has_node(peer.node)) step(peer.run_id, {peer.node, Unseen{}});
      if (!run->second.misses(peer.node)) lose(peer.run_id, peer.node, "closed its connection");
    }
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

// If a node is lost while its link is open, its link is closed, and the node reports its state
// again on another one: what it sent before it learnt of its loss concerns a seat that it no longer
// holds.
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
  for (const Relays::Waiting& late : relays_.expire(now)) {
    deny_relay(late.dialer, "node " + late.node + " has not answered", /*again=*/true);
  }
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
  const DaemonMessage* last_sent = nullptr;  // A message to all nodes is encoded once.
  std::string body;
  for (RunAction& action : actions) {
    const auto link = links->second.find(action.node);
    if (link == links->second.end()) continue;
    add_ledger(run_id, run, action);
    if (!last_sent || !same_for_all(*last_sent, action.message)) body = encode(action.message);
    last_sent = &action.message;
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
  TimePoint next = forget_at().value_or(TimePoint::max());
  if (!due_.empty()) next = std::min(next, due_.begin()->first);
  next = std::min(next, relays_.deadline().value_or(TimePoint::max()));
  return next == TimePoint::max() ? std::nullopt : std::optional(next);
}

// Streams between nodes that cannot reach each other (rendezvous/protocol/wire_request.h). Nothing
// of them is recorded: they end with the daemon.

void Coordinator::dial(LinkId link, const Dial& dial) {
  if (relays_.contains(link)) return actions_.push_back(Hangup{link, "it has dialled twice"});
  if (dial.version != kProtocolVersion) {
    return deny_relay(link, "the daemon speaks another version of the protocol");
  }
  const auto links = links_.find(dial.run_id);
  const bool is_here = links != links_.end() && links->second.contains(dial.node);
  if (!is_here) {  // Its agent may be about to connect anew.
    return deny_relay(link, "the daemon has no link with node " + dial.node, /*again=*/true);
  }
  const LinkId agent = links->second.at(dial.node);
  if (!peers_.at(agent).relays) {
    return deny_relay(link, "node " + dial.node + " has an older ddprun, which cannot be dialled");
  }
  const auto stream = relays_.begin(link, dial.run_id, dial.node, now_);
  if (!stream) return deny_relay(link, stream.error().context);
  actions_.push_back(Send{agent, encode(DaemonMessage(Relay{*stream, dial.port}))});
}

void Coordinator::meet(LinkId link, const Meet& meet) {
  if (relays_.contains(link)) {
    return actions_.push_back(Hangup{link, "it has dialled, and meets no stream"});
  }
  const auto waiting = relays_.take(meet.stream, meet.run_id, meet.node);
  if (!waiting) return deny_relay(link, "the other end of this stream is not here any more");
  if (!meet.error.empty()) {
    deny_relay(waiting->dialer, meet.error);
    return actions_.push_back(Hangup{link, ""});
  }
  for (const LinkId end : {waiting->dialer, link}) {
    actions_.push_back(Send{end, encode(Joined{})});
  }
  actions_.push_back(Bridge{waiting->dialer, link, relays_.slot_of(meet.run_id)});
}

void Coordinator::deny_relay(LinkId link, const std::string& why, bool again) {
  actions_.push_back(Send{link, encode(Joined{why, again})});
  actions_.push_back(Hangup{link, ""});
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

// The part of Coordinator that answers operators. Their links send one Command, get the answer and
// are closed; they do not belong to agents.

namespace {

constexpr std::size_t kNamedMax = 20;  // In a list for people.

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == kNamedMax) return text + ", and " + std::to_string(names.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text;
}

// "10 min", "90 s".
std::string limit_text(Milliseconds limit) {
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(limit);
  if (minutes.count() == 0 || minutes != limit) return seconds_text(limit);
  return std::to_string(minutes.count()) + " min";
}

Failure refused(std::string why) { return {Errc::kNotFound, std::move(why)}; }

}  // namespace

DaemonStatus Coordinator::status(TimePoint now) const {
  DaemonStatus status;
  for (const auto& [run_id, run] : runs_) {
    status.runs.push_back(run.status(now));
    status.runs.back().run_id = run_id;
    add_ledger(status.runs.back(), now);
  }
  return status;
}

void Coordinator::answer(LinkId link, const Command& command) {
  ++counters_.commands;
  const Result<std::string> done = obey(command);
  if (!done) {
    actions_.push_back(Send{link, encode(Answer{.error = done.error().context})});
  } else {
    std::size_t at = 0;
    do {
      const std::string piece = done->substr(at, kTextPieceBytes);
      at += piece.size();
      actions_.push_back(Send{link, encode(Answer{.text = piece, .more = at < done->size()})});
    } while (at < done->size());
  }
  actions_.push_back(Hangup{link, ""});
}

Result<std::string> Coordinator::obey(const Command& command) {
  if (command.version != kProtocolVersion) {
    counters_.refused.add(Refusal::kOtherVersion);
    return refused("this daemon speaks protocol version " + std::to_string(kProtocolVersion) +
                   ", ddprunctl version " + std::to_string(command.version) +
                   "; install the same ddprun on both sides");
  }
  if (command.verb == Command::Verb::kHistory) return history(command);
  if (command.verb == Command::Verb::kReport && has_ended(command.run_id)) {
    if (auto account = past_.account(command.run_id)) return *std::move(account);
  }
  if (!command.run_id.empty() && !runs_.contains(command.run_id)) {
    std::vector<std::string> known;
    for (const auto& [run_id, run] : runs_) known.push_back(run_id);
    return refused("there is no run '" + command.run_id + "' here; " +
                   (known.empty() ? "there is none at all" : "there are: " + listed(known)));
  }
  switch (command.verb) {
    case Command::Verb::kStatus:
    case Command::Verb::kWatch: {
      DaemonStatus all = command.verb == Command::Verb::kWatch ? watched(now_) : status(now_);
      if (!command.run_id.empty()) {
        std::erase_if(all.runs, [&](const auto& run) { return run.run_id != command.run_id; });
      }
      return encode(all);
    }
    case Command::Verb::kDrain: return drain(command);
    case Command::Verb::kCancel: return cancel(command);
    case Command::Verb::kResize: return resize(command);
    case Command::Verb::kHistory: break;  // Queried before: its runs are not among runs_.
    case Command::Verb::kReport: {
      auto account = this->account(command.run_id, now_);
      if (!account) return refused("name the run to report on");
      return *std::move(account);
    }
  }
  return refused("unknown command");
}

// A node that one means by its id or by its host, as "host (id) of run".
Result<std::string> Coordinator::drain(const Command& command) {
  struct Found {
    std::string run_id;
    NodeId node;
  };
  std::vector<Found> found;
  std::vector<std::string> names, all;
  for (const RunStatus& run : status(now_).runs) {
    if (!command.run_id.empty() && run.run_id != command.run_id) continue;
    if (run.state == "closing" || run.state == "ended") continue;
    for (const NodeStatus& node : run.nodes) {
      const std::string name = node.host + " (" + node.id + ") of run '" + run.run_id + "'";
      all.push_back(name);
      if (node.id != command.node && node.host != command.node) continue;
      found.push_back({run.run_id, node.id});
      names.push_back(name);
    }
  }
  if (found.empty()) {
    return refused("there is no node '" + command.node + "' in a run that has not ended; " +
                   (all.empty() ? "there is none at all" : "there are: " + listed(all)));
  }
  if (found.size() > 1) {
    return refused("'" + command.node + "' may be " + listed(names) +
                   "; name one by its id, or the run too");
  }
  const Run& run = runs_.at(found[0].run_id);
  if (run.is_last_holder(found[0].node) && !command.force) {
    return refused(names[0] +
                   " has the only workers that have the state of this job; without them it begins "
                   "again, with its checkpoint if it has one. To drain the node all the same, add "
                   "--force");
  }
  const bool waits = run.waits_without(found[0].node);
  const std::string limit = limit_text(run.join_timeout());
  step(found[0].run_id, {found[0].node, Drain{plain_line(command.reason)}});
  return names[0] + " is drained: the run " +
         (waits ? "waits " + limit + " for another node" : "continues without it");
}

Result<std::string> Coordinator::resize(const Command& command) {
  const auto run = runs_.find(command.run_id);
  if (run == runs_.end()) return refused("name the run to resize");
  const std::string name = "run '" + command.run_id + "'";
  const Run::State state = run->second.state();
  if (state == Run::State::kClosing || state == Run::State::kEnded) {
    return refused(name + " is over already");
  }
  const RunStatus status = run->second.status(now_);
  if (status.nnodes_max == 0) return refused("no node has joined " + name + " yet");
  if (command.nodes < status.nnodes_min || command.nodes > status.nnodes_max) {
    return refused(name + " was started for " + std::to_string(status.nnodes_min) + " to " +
                   std::to_string(status.nnodes_max) + " nodes (--nnodes)");
  }
  step(command.run_id, {"", Resize{command.nodes, plain_line(command.reason)}});
  return name + " is resized to " + number_of(command.nodes, "node");
}

Result<std::string> Coordinator::cancel(const Command& command) {
  const auto run = runs_.find(command.run_id);
  if (run == runs_.end()) return refused("name the run to cancel");
  const Run::State state = run->second.state();
  if (state == Run::State::kClosing || state == Run::State::kEnded) {
    // Without this the run could still gather again if its failure were excused.
    if (state == Run::State::kClosing)
      step(command.run_id, {"", Cancel{SIGTERM, plain_line(command.reason)}});
    return refused("run '" + command.run_id + "' is over already: " + run->second.verdict()->text);
  }
  step(command.run_id, {"", Cancel{SIGTERM, plain_line(command.reason)}});
  return "run '" + command.run_id + "' is cancelled; its workers are being stopped";
}

// What the Coordinator remembers beyond its own life, and what it forgets while it lives.

namespace {

// For how long operators can query an ended run; a daemon may serve for years.
constexpr std::chrono::hours kRemembered{1};

Replay replayed(const Journal& journal) {
  Replay replay;
  for (const JournalEntry& entry : journal.entries) {
    const bool taken = replay.take(entry);
    DDPRUN_ASSERT(taken);  // decode_journal() has seen to that.
  }
  return replay;
}

}  // namespace

void Coordinator::load(const Journal& journal) { restore(replayed(journal)); }

void Coordinator::replay(const Journal& journal, TimePoint now, const std::string& clock) {
  Replay last = replayed(journal);
  if (last.clock != clock || last.now > now) last.rebase(now);
  last.now = now;
  if (last.clock != clock) records_ += encode_record(ClockChange{clock, now});
  last.clock = clock;
  restore(std::move(last));
  // The actions have no receiver: each node that connects reports its state and is answered.
  (void)on_recovered(now);
  for (const auto& [run_id, run] : runs_) note_idle(run_id, run);
}

void Coordinator::restore(Replay last) {
  DDPRUN_ASSERT(runs_.empty() && peers_.empty() && due_.empty());
  std::erase_if(last.runs, [](const auto& run) { return run.second.blank(); });
  runs_ = std::move(last.runs);
  now_ = last.now;
  clock_ = std::move(last.clock);
  for (const auto& [run_id, run] : runs_) schedule(run_id, run);
}

std::vector<LinkAction> Coordinator::on_recovered(TimePoint now) {
  enter(now);
  for (auto& [run_id, run] : runs_) {
    if (run.state() == Run::State::kEnded) continue;
    step(run_id, {"", Recovered{}});
    const auto links = links_.find(run_id);
    if (links == links_.end()) continue;
    // Nodes that are still connected need not return.
    std::set<NodeId> here;  // In an order that does not depend on the memory's layout.
    for (const auto& [node, link] : links->second) here.insert(node);
    for (const NodeId& node : here) {
      if (run.misses(node)) step(run_id, {node, Returned{}});
    }
  }
  return std::exchange(actions_, {});
}

std::string Coordinator::snapshot(TimePoint now) const {
  std::string records;
  if (!clock_.empty()) records += encode_record(ClockChange{clock_, now});
  for (const auto& [run_id, run] : runs_) {
    if (!run.blank()) records += encode_record(RunSnapshot{run_id, now, run});
  }
  return records;
}

bool Coordinator::has_links(const std::string& run_id) const {
  return links_.contains(run_id);  // No entry there is empty.
}

void Coordinator::note_idle(const std::string& run_id, const Run& run) {
  if (run.state() != Run::State::kEnded || has_links(run_id)) return note_busy(run_id);
  if (idle_since_.try_emplace(run_id, now_).second) idle_.emplace(now_, run_id);
}

void Coordinator::note_busy(const std::string& run_id) {
  const auto since = idle_since_.find(run_id);
  if (since == idle_since_.end()) return;
  idle_.erase({since->second, run_id});
  idle_since_.erase(since);
}

// A run without a node: none has joined yet, or the first ones have left again. Nothing was
// recorded of it that its next node would not send again.
void Coordinator::forget_blank(const std::string& run_id) {
  const auto run = runs_.find(run_id);
  if (run != runs_.end() && run->second.blank() && !has_links(run_id)) erase(run_id);
}

void Coordinator::forget_idle() {
  while (!idle_.empty() && now_ - idle_.begin()->first >= kRemembered) {
    const std::string run_id = idle_.begin()->second;
    DDPRUN_ASSERT(runs_.at(run_id).state() == Run::State::kEnded);
    step(run_id, {"", Begin{}});  // Recorded, so that a replay forgets the run at the same point.
    erase(run_id);
  }
}

void Coordinator::erase(const std::string& run_id) {
  DDPRUN_ASSERT(runs_.contains(run_id) && !has_links(run_id));
  schedule(run_id, Run());
  note_busy(run_id);
  sync_.erase(run_id);
  ledgers_.erase(run_id);
  compare_waiting(run_id);
  runs_.erase(run_id);
}

void Coordinator::check_invariants() const {
  DDPRUN_ASSERT(actions_.empty());
  std::size_t linked = 0;
  for (const auto& [run_id, links] : links_) {
    DDPRUN_ASSERT(!links.empty());
    linked += links.size();
    for (const auto& [node, link] : links) {
      const Peer& peer = peers_.at(link);
      DDPRUN_ASSERT(peer.run_id == run_id && peer.node == node);
    }
  }
  DDPRUN_ASSERT(linked == peers_.size());
  DDPRUN_ASSERT(due_.size() == due_of_.size() && idle_.size() == idle_since_.size());
  for (const auto& [run_id, due] : due_of_) {
    DDPRUN_ASSERT(due_.contains({due, run_id}) && runs_.contains(run_id));
  }
  for (const auto& [run_id, since] : idle_since_) {
    DDPRUN_ASSERT(idle_.contains({since, run_id}));
    DDPRUN_ASSERT(runs_.at(run_id).state() == Run::State::kEnded && !has_links(run_id));
  }
  for (const std::string& run_id : waiting_) DDPRUN_ASSERT(runs_.at(run_id).lacks_nodes());
  for (const auto& [run_id, totals] : sync_) DDPRUN_ASSERT(runs_.contains(run_id));
  for (const auto& [run_id, ledger] : ledgers_) DDPRUN_ASSERT(runs_.contains(run_id));
  for (const auto& [run_id, run] : runs_) run.check_invariants();
  relays_.check_invariants();
}

std::optional<TimePoint> Coordinator::forget_at() const {
  if (idle_.empty()) return std::nullopt;
  return idle_.begin()->first + kRemembered;
}

}  // namespace ddprun::rendezvous
