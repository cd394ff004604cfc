// Run's whole state as JSON and back, so that a journal need not hold every event since the run
// began. A snapshot knows no clock: each point of time is written as its distance from the moment
// of the snapshot, and so means the same on another boot or another host.

#include <algorithm>
#include <tuple>

#include "common/archive/json.h"
#include "common/text/figures.h"
#include "rendezvous/protocol/wire_fields.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

void fields(auto& a, archive::Is<Moment> auto& m) {
  a("noticed_us", m.noticed), a("clock", m.clock);
}
void fields(auto& a, archive::Is<LostGrant> auto& m) {
  a("node", m.node), a("fallen", m.fallen), a("granted", m.granted);
}
void fields(auto& a, archive::Is<MemoryCopy> auto& m) {
  a("node", m.node), a("holder", m.holder), a("before", m.before);
}
void fields(auto& a, archive::Is<Loss> auto& m) { a("what", m.what), a("times", m.times); }

// Both functions take their object apart as a whole: a field that is added to it and forgotten here
// does not compile.
struct Run::Snapshot {
  static void run(auto& a, auto& whole) {
    auto& [config, config_from, state, round, restart_count, size, arrivals, roster, now, members,
           in_phase, ready, node_ranks, dismissed, daemon_host, step_mates, beat_floor, gather_ends,
           last_call_ends, stop_ends, grow_at, silence_check, keep, planned, change, parked,
           min_ranks, kept_steps, workers_blamed, deaths, first_death, dead_ranks, successes,
           unreachable, past, skip, lost, lost_grants, memory_copies, verdict, neighbour, actions] =
        whole;
    a("config", config), a("config_from", config_from), a.enumerator("state", state, State::kEnded);
    a("round", round), a("restart_count", restart_count), a("arrivals", arrivals);
    a("roster", roster), a("now", now), a("gather_ends", gather_ends);
    a("last_call_ends", last_call_ends), a("stop_ends", stop_ends), a("grow_at", grow_at);
    a("silence_check", silence_check), a("deaths", deaths), a.added("losses", lost),
        a("verdict", verdict);
    a("node_ranks", node_ranks), a("dismissed", dismissed), a("beat_floor_ms", beat_floor);
    a("workers_blamed", workers_blamed);
    a.added("successes", successes), a.added("past", past), a.added("skip", skip);
    a.added("size", size), a.added("min_ranks", min_ranks), a.added("kept_steps", kept_steps);
    a.added("keep", keep), a.added("planned", planned), a.added("change", change);
    a.added("first_death", first_death), a.sparse("unreachable", unreachable);
    a.added("lost_grants", lost_grants);
    a.added("daemon_host", daemon_host), a.added("step_mates", step_mates);
    a.added("memory_copies", memory_copies.copies);
    // Apart from these: members_ has its own form below, in_phase_ and ready_ follow from it and
    // dead_ranks_ from deaths_, parked_ from members_; actions_ is empty between steps, and
    // neighbour_ is the coordinator's.
    (void)members, (void)in_phase, (void)ready, (void)dead_ranks, (void)neighbour, (void)actions;
    (void)parked;
  }

  static void member(auto& a, auto& whole) {
    auto& [offer, phase, arrival, group_rank_before, after_round, seat, last_seen, beat,
           heartbeat_acknowledged, roster_notified, unanswered, missing, asked, round_trip, living,
           beginning, prepares, invited, holders, kept, parked, spares, serial, fallen, granted,
           cannot_recover] = whole;
    a("offer", offer), a.enumerator("phase", phase, Phase::kEmpty), a("arrival", arrival);
    a.added("after_round", after_round);
    a("group_rank_before", group_rank_before), a("seat", seat), a("last_seen", last_seen);
    a("beat_ms", beat), a("beat_told_ms", heartbeat_acknowledged),
        a("roster_told", roster_notified);
    a("missing", missing), a("unanswered", unanswered);
    a.added("asked", asked), a.added("round_trip_ms", round_trip);
    a.added("living", living), a.added("kept", kept), a.added("parked", parked);
    a.added("serial", serial), a.added("fallen", fallen), a.added("granted", granted);
    a.added("hopeless", cannot_recover), a.added("beginning", beginning);
    a.added("prepares", prepares), a.added("invited", invited), a.added("spares", spares);
    a.added("holders", holders);
  }

  static void read(const archive::json& object, TimePoint at, Run& whole);
  static bool plausible(const Run& run, const RunConfig& config);
  static bool plausible(const Run& run, const NodeId& node, const Member& member);
  static bool plausible(const Run& run, TimePoint at);
};

std::string Run::snapshot(TimePoint at) const {
  archive::Writer<archive::JsonText> writer(at);
  Snapshot::run(writer, *this);
  writer.list_of("members", members_, [&](const auto& one) {
    writer.object([&] {
      writer("node", one.first);
      Snapshot::member(writer, one.second);
    });
  });
  return writer.take();
}

void Run::Snapshot::read(const archive::json& object, TimePoint at, Run& whole) {
  // A verdict quotes the last words of many workers.
  const archive::Reader reader(object, {.text_bytes = std::size_t{64} << 20}, at);
  run(reader, whole);
  for (const WorkerDeath& death : whole.deaths_) {
    if (!whole.dead_ranks_.insert(death.rank).second) throw archive::BadField{"deaths"};
  }
  // A daemon of an earlier version kept the blame in a run that nothing may open again.
  const bool failed = whole.verdict_ && whole.verdict_->kind == Verdict::Kind::kWorkerFailed;
  if (whole.state_ == State::kEnded || (whole.verdict_ && !failed)) whole.workers_blamed_ = false;
  const archive::json& list = reader.value("members");
  if (!list.is_array()) throw archive::BadField{"members"};
  for (const archive::json& item : list) {
    const archive::Reader one_of = reader.of(item, "members");
    NodeId node;
    one_of("node", node);
    const auto [one, is_new] = whole.members_.try_emplace(node);
    if (!is_new) throw archive::BadField{"node"};
    Snapshot::member(one_of, one->second);
    ++whole.in_phase_[static_cast<std::size_t>(one->second.phase)];
    if (one->second.phase == Phase::kReady) whole.ready_.insert(node);
    whole.parked_ += one->second.parked;
  }
}

bool Run::Snapshot::plausible(const Run& run, const RunConfig& config) {
  if (config.nnodes_min < 1 || config.nnodes_max < config.nnodes_min) return false;
  const bool sized = run.size_ >= config.nnodes_min && run.size_ <= config.nnodes_max;
  if (run.size_ != 0 && !sized) return false;
  if (run.restart_count_ < 0 || run.restart_count_ > config.max_restarts) return false;
  return run.seated() <= config.nnodes_max;
}

bool Run::Snapshot::plausible(const Run& run, const NodeId& node, const Member& member) {
  const bool empty = member.phase == Phase::kEmpty;
  if (member.seat.has_value() == (empty || member.phase == Phase::kReady)) return false;
  if (member.offer.local_world_size < (empty ? 0 : 1)) return false;
  if (member.parked < 0 || member.parked > kParkedMax) return false;
  if (member.parked > 0 && member.phase != Phase::kSeated) return false;
  if (member.fallen < 0 || member.granted < 0 || member.beginning < 0) return false;
  const bool stops = member.phase == Phase::kStopping || member.phase == Phase::kStopped;
  const bool ended = run.state_ == State::kEnded;
  const bool leaves = member.seat && (ended || !run.change_.empty());
  if (run.dismissed_.contains(node) && !stops && !leaves) return false;
  if (!member.seat) return true;
  return stops ? member.seat->round <= run.round_ : member.seat->round == run.round_;
}

// Checks what step() relies on. A checksum has excluded damage; this excludes a writer's errors.
bool Run::Snapshot::plausible(const Run& run, TimePoint at) {
  const bool over = run.state_ == State::kClosing || run.state_ == State::kEnded;
  if (!run.change_.empty() && run.state_ != State::kRunning) return false;
  if (run.planned_ && !run.keep_) return false;
  if (run.min_ranks_ < 0 || run.kept_steps_ < 0) return false;
  for (const LostGrant& lost : run.lost_grants_) {
    if (lost.fallen < 0 || lost.granted < 0) return false;
  }
  if (run.now_ > at || run.verdict_.has_value() != over) return false;
  if (run.config_ ? !plausible(run, *run.config_) : !run.members_.empty()) return false;
  if (run.state_ == State::kRunning && (run.seated() == 0 || run.count(Phase::kStopping) > 0)) {
    return false;
  }
  if (run.seated() > 0 && run.state_ != State::kRunning && run.state_ != State::kEnded) {
    return false;
  }
  if (over && run.verdict_->kind == Verdict::Kind::kWorkerFailed && run.deaths_.empty()) {
    return false;
  }
  if (run.count(Phase::kStopped) > 0 && !over) return false;
  if (run.workers_blamed_ && !over && (!run.gathering() || run.restart_count_ == 0)) return false;
  for (const auto& [rank, node] : run.node_ranks_) {
    const auto member = run.members_.find(node);
    if (member == run.members_.end() || member->second.offer.node_rank != rank) return false;
  }
  return std::all_of(run.members_.begin(), run.members_.end(), [&](const auto& one) {
    return plausible(run, one.first, one.second) && one.second.asked.value_or(at) <= at;
  });
}

Result<Run> Run::restore(std::string_view snapshot, TimePoint at) {
  const Result<archive::json> object = archive::parse_object(snapshot, {});
  if (!object) return object.error();
  Run run;
  try {
    Snapshot::read(*object, at, run);
  } catch (const archive::BadField& bad) {
    return archive::failure_of(bad, "a snapshot");
  }
  if (!Snapshot::plausible(run, at)) {
    return Failure{Errc::kBadMessage, "reading a snapshot of a run that cannot be"};
  }
  return run;
}

// The part of Run that describes its state for operators.
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

// When the state that people see ends by itself. deadline() also has times at which something is
// only checked.
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

// The texts of a Run: for people who wait, in traces and in failed tests.

namespace {

constexpr int kNamesMax = 8;  // More nodes are counted, not named.

// Adds `name` to a list of names; false once it is long enough.
bool add_name(std::string& list, int& named, const std::string& name) {
  if (++named > kNamesMax) return list += ", ...", false;
  list += (named == 1 ? "" : ", ") + name;
  return true;
}

}  // namespace

std::string Run::losses_text() const {
  constexpr std::size_t kNamedMax = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(lost_.size(), kNamedMax); ++i) {
    const auto& [what, times] = lost_[i];
    text += " " + what + (times > 1 ? ", " + std::to_string(times) + " times" : "") + ".";
  }
  if (lost_.size() <= kNamedMax) return text;
  return text + " And so on: " + std::to_string(lost_.size()) + " of these in all.";
}

// The hosts of the nodes that wait.
std::string Run::roster_text() const {
  std::string text;
  int named = 0;
  for (const NodeId& node : ready_) {
    if (!add_name(text, named, members_.at(node).offer.host)) break;
  }
  return text;
}

std::string Run::names_text(Phase phase) const {
  std::string text;
  int named = 0;
  for (const auto& [node, member] : members_) {
    if (member.phase != phase) continue;
    if (!add_name(text, named, member.offer.host)) break;
  }
  return text;
}

// What a node that has no seat waits for.
std::string Run::waiting_text(const Member* member) const {
  if (state_ == State::kRunning) {
    if (seated() >= size()) return "held in reserve: the run has enough nodes";
    if (config_->join_at_restart)
      return "held in reserve: new nodes are let in when the round ends";
    if (member && (member->invited || member->living)) {
      const bool ready = member->living && member->phase == Phase::kReady && member->beginning == 0;
      return ready ? "its workers are ready: they get seats at the next boundary between steps"
                   : "its workers are starting: they get seats when they are ready";
    }
    return "waiting for more nodes before the round is stopped for them";
  }
  const int min = config_->nnodes_min, max = config_->nnodes_max, ready = count(Phase::kReady);
  const std::string wanted =
      min == max ? std::to_string(max) : std::to_string(min) + " to " + std::to_string(max);
  const bool lacks_ranks =
      ready >= min && ready_ranks() < min_ranks_ && count(Phase::kStopping) == 0;
  std::string text =
      state_ == State::kLastCall ? "last call for more nodes: " : "waiting for nodes: ";
  text += std::to_string(ready) + " of " + wanted + " here";
  if (lacks_ranks) {
    text = "waiting for ranks: " + std::to_string(ready_ranks()) + " of at least " +
           std::to_string(min_ranks_) + " here";
  }
  if (ready > 0) text += " (" + roster_text() + ")";
  if (count(Phase::kStopping) > 0) {
    text += "; " + names_text(Phase::kStopping) + (keep_ ? " still to leave" : " still to stop");
  }
  if (count(Phase::kEmpty) > 0) text += "; " + names_text(Phase::kEmpty) + " has no worker yet";
  if (!lost_.empty() && round_ == 0) text += "; " + lost_.back().what;
  if (!neighbour_.empty() && lacks_nodes()) text += "; " + neighbour_;
  return text;
}

bool Run::lacks_nodes() const {
  return state_ == State::kGathering && config_ && round_ == 0 && count(Phase::kReady) > 0;
}

bool Run::could_be(const Run& other) const {
  return config_->nnodes_min == other.config_->nnodes_min &&
         config_->nnodes_max == other.config_->nnodes_max &&
         count(Phase::kReady) + other.count(Phase::kReady) <= config_->nnodes_max;
}

std::string Run::neighbour_text() const {
  return "waits at the same daemon for " +
         std::to_string(config_->nnodes_min - count(Phase::kReady)) + " of " +
         number_of(config_->nnodes_min, "node") + ": is --rdzv-id equal everywhere?";
}

void Run::set_neighbour(std::string text) {
  if (text == neighbour_) return;
  neighbour_ = std::move(text);
  ++roster_;
}

std::string Run::waiting_for(TimePoint now) const {
  const auto yet = [&](TimePoint end) {
    constexpr Milliseconds kTenthsBelow{10'000};
    const auto left = std::chrono::duration_cast<Milliseconds>(std::max(end, now) - now);
    return seconds_text(left < kTenthsBelow ? left : std::chrono::ceil<std::chrono::seconds>(left));
  };
  switch (state_) {
    case State::kGathering:
      if (!config_) return "no node has joined yet";
      return waiting_text() + "; it is given up in " + yet(gather_ends_);
    case State::kLastCall: return waiting_text() + "; it starts in " + yet(wait_ends());
    case State::kRunning:
      return "round " + std::to_string(round_) + " runs on " + number_of(seated(), "node") +
             (ready_.empty() ? "" : ", " + number_of(count(Phase::kReady), "spare")) +
             (size_ > 0 ? ", resized to " + std::to_string(size_) : "");
    case State::kClosing:
      return "waiting for " + names_text(Phase::kStopping) + " to stop; lost in " + yet(stop_ends_);
    case State::kEnded:
      return "it has ended: " + verdict_->text.substr(0, verdict_->text.find('\n'));
  }
  return {};
}

namespace {

std::string line(const Waiting& w) {
  return "waiting " + (w.left > Milliseconds(0) ? seconds_text(w.left) + " " : "") + "(" + w.text +
         ")";
}
std::string line(const Assign& a) {
  const Seat& s = a.seat;
  return "assign round=" + std::to_string(s.round) + " group_rank=" + std::to_string(s.group_rank) +
         "/" + std::to_string(s.group_world_size) + " ranks=" + std::to_string(s.base_rank) +
         ".. of " + std::to_string(s.world_size) + " restarts=" + std::to_string(s.restart_count) +
         " master=" + s.master_address + ":" + std::to_string(s.master_port) +
         (s.lost_steps > 0 ? ", " + std::to_string(s.lost_steps) + " steps are lost" : "");
}
std::string line(const StopRound& s) {
  const char* how = s.final     ? " for good ("
                    : s.planned ? ", at a step ("
                    : s.keep    ? ", kept ("
                                : " (";
  return std::string("stop round=") + std::to_string(s.round) + how + s.reason +
         (s.lost_rank < 0 ? "" : ", rank " + std::to_string(s.lost_rank)) + ")" +
         (s.waits ? ", waiting for others" : "") + (s.awaits_cause ? ", awaiting the cause" : "") +
         (s.lost_steps > 0 ? ", " + std::to_string(s.lost_steps) + " steps are lost" : "");
}
std::string line(const EndRun& e) {
  return "end code=" + std::to_string(e.verdict.exit_code) + " (" + e.verdict.text + ")";
}
std::string line(const Refuse& r) { return "refuse (" + r.reason + ")"; }
std::string line(const Dismiss& d) {
  return std::string("dismiss") + (d.waits ? ", and wait (" : " (") + d.reason + ")" +
         (d.hosts ? ", it hosts the daemon of others" : "") +
         (d.for_step ? ", others of its step go on" : "");
}
std::string line(const Respawn& r) {
  const std::string refused = r.refused > 0 ? ", not " + std::to_string(r.refused) : "";
  return "respawn " + std::to_string(r.granted) + " in all" + refused +
         ", restarts=" + std::to_string(r.restart_count);
}
std::string line(const Prepare&) { return "prepare"; }
std::string line(const Account& a) {
  return "account, " + std::to_string(a.piece.size()) + " bytes";
}
std::string line(const Relay& r) {
  return "relay stream " + std::to_string(r.stream) + " to port " + std::to_string(r.port);
}
std::string line(const Alive& a) {
  return "alive, beat in " + std::to_string(a.beat.count()) + " ms";
}

}  // namespace

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
