// Run's whole state as JSON and back, so that a journal need not hold every event since the run
// began. A snapshot knows no clock: each point of time is written as its distance from the moment
// of the snapshot, and so means the same on another boot or another host.

#include <algorithm>

#include "rendezvous/protocol/wire_archive.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

void fields(auto&& a, archive::Is<Moment> auto& m) {
  a("noticed_us", m.noticed), a("clock", m.clock);
}
void fields(auto&& a, archive::Is<LostGrant> auto& m) {
  a("node", m.node), a("fallen", m.fallen), a("granted", m.granted);
}
void fields(auto&& a, archive::Is<Loss> auto& m) { a("what", m.what), a("times", m.times); }

// Both functions take their object apart as a whole: a field that is added to it and forgotten here
// does not compile.
struct Run::Snapshot {
  static void run(auto&& a, auto& whole) {
    auto& [config, config_from, state, round, restart_count, size, arrivals, roster, now, members,
           in_phase, ready, node_ranks, dismissed, daemon_host, step_mates, beat_floor, gather_ends,
           last_call_ends, stop_ends, grow_at, silence_check, keep, planned, change, parked,
           min_ranks, kept_steps, workers_blamed, deaths, first_death, dead_ranks, successes, past,
           skip, lost, lost_grants, verdict, neighbour, actions] = whole;
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
    a.added("first_death", first_death);
    a.added("lost_grants", lost_grants);
    a.added("daemon_host", daemon_host), a.added("step_mates", step_mates);
    // Apart from these: members_ has its own form below, in_phase_ and ready_ follow from it and
    // dead_ranks_ from deaths_, parked_ from members_; actions_ is empty between steps, and
    // neighbour_ is the coordinator's.
    (void)members, (void)in_phase, (void)ready, (void)dead_ranks, (void)neighbour, (void)actions;
    (void)parked;
  }

  static void member(auto&& a, auto& whole) {
    auto& [offer, phase, arrival, group_rank_before, after_round, seat, last_seen, beat, beat_told,
           roster_told, unanswered, missing, asked, round_trip, living, beginning, prepares,
           invited, holders, kept, parked, spares, serial, fallen, granted, hopeless] = whole;
    a("offer", offer), a.enumerator("phase", phase, Phase::kEmpty), a("arrival", arrival);
    a.added("after_round", after_round);
    a("group_rank_before", group_rank_before), a("seat", seat), a("last_seen", last_seen);
    a("beat_ms", beat), a("beat_told_ms", beat_told), a("roster_told", roster_told);
    a("missing", missing), a("unanswered", unanswered);
    a.added("asked", asked), a.added("round_trip_ms", round_trip);
    a.added("living", living), a.added("kept", kept), a.added("parked", parked);
    a.added("serial", serial), a.added("fallen", fallen), a.added("granted", granted);
    a.added("hopeless", hopeless), a.added("beginning", beginning);
    a.added("prepares", prepares), a.added("invited", invited), a.added("spares", spares);
    a.added("holders", holders);
  }

  static void read(const archive::json& object, TimePoint at, Run& whole);
  static bool plausible(const Run& run, const RunConfig& config);
  static bool plausible(const Run& run, const NodeId& node, const Member& member);
  static bool plausible(const Run& run, TimePoint at);
};

std::string Run::snapshot(TimePoint at) const {
  archive::Writer writer(at);
  Snapshot::run(writer, *this);
  writer.list("members", members_, [&](const auto& one) {
    writer.object([&] {
      writer("node", one.first);
      Snapshot::member(writer, one.second);
    });
  });
  return writer.take();
}

void Run::Snapshot::read(const archive::json& object, TimePoint at, Run& whole) {
  // A verdict quotes the last words of many workers.
  constexpr std::size_t kSnapshotTextMax = std::size_t{64} << 20;
  const auto reader = [&](const archive::json& from) {
    return archive::Reader{from, at, kSnapshotTextMax};
  };
  run(reader(object), whole);
  for (const WorkerDeath& death : whole.deaths_) {
    if (!whole.dead_ranks_.insert(death.rank).second) throw archive::BadField{"deaths"};
  }
  // A daemon of an earlier version kept the blame in a run that nothing may open again.
  const bool failed = whole.verdict_ && whole.verdict_->kind == Verdict::Kind::kWorkerFailed;
  if (whole.state_ == State::kEnded || (whole.verdict_ && !failed)) whole.workers_blamed_ = false;
  const archive::json& list = reader(object).value("members");
  if (!list.is_array()) throw archive::BadField{"members"};
  for (const archive::json& item : list) {
    if (!item.is_object()) throw archive::BadField{"members"};
    NodeId node;
    reader(item)("node", node);
    const auto [one, is_new] = whole.members_.try_emplace(node);
    if (!is_new) throw archive::BadField{"node"};
    Snapshot::member(reader(item), one->second);
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

// What step() relies on. A checksum has kept chance away; this is for whoever wrote nonsense.
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
  const archive::json object = archive::json::parse(snapshot, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return Failure{Errc::kBadMessage, "reading a snapshot that is not a JSON object"};
  }
  Run run;
  try {
    Snapshot::read(object, at, run);
  } catch (const archive::BadField& bad) {
    return Failure{Errc::kBadMessage, "reading field '" + bad.name + "' of a snapshot"};
  }
  if (!Snapshot::plausible(run, at)) {
    return Failure{Errc::kBadMessage, "reading a snapshot of a run that cannot be"};
  }
  return run;
}

}  // namespace ddprun::rendezvous
