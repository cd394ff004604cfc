#include "rendezvous/ledger/run_ledger.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::rendezvous {
namespace {

using Time = TimeParts::Time;

constexpr std::size_t kPlacesMax = 10'000;  // Of one node.

// Of each kept part the same share becomes lost work.
void lose(PlaceTimes& place) {
  const Time kept = place.parts.kept();
  const Time risk = std::clamp(place.at_risk, Time{0}, kept);
  place.at_risk = Time{0};
  if (risk == Time{0}) return;
  const double share = static_cast<double>(risk.count()) / static_cast<double>(kept.count());
  Time lost{0};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (!is_kept(static_cast<TimePart>(i))) continue;
    Time& part = place.parts.times[i];
    const Time taken(static_cast<std::int64_t>(static_cast<double>(part.count()) * share));
    part -= taken;
    lost += taken;
  }
  place.parts[TimePart::kLost] += lost;
}

// Nodes without ranks come last.
int lowest_rank(const std::vector<PlaceTimes>& places) {
  int lowest = std::numeric_limits<int>::max();
  for (const PlaceTimes& place : places) {
    if (place.rank >= 0) lowest = std::min(lowest, place.rank);
  }
  return lowest;
}

Time longest(const NodeTimes& times) {
  Time longest{0};
  for (const PlaceTimes& place : times.places) longest = std::max(longest, place.parts.sum());
  return longest;
}

}  // namespace

void RunLedger::joined(const NodeId& node, const std::string& host) {
  if (ended_) return;
  Node& here = node_of(node);
  here.host = host;
  here.lost.reset();
}

// A restarted daemon gets reports of nodes that it has not seen join. Their ids begin with their
// host.
RunLedger::Node& RunLedger::node_of(const NodeId& id) {
  const auto [it, is_new] = nodes_.try_emplace(id);
  if (!is_new) return it->second;
  it->second.arrival = arrivals_++;
  it->second.host = id.substr(0, id.rfind('.'));
  make_room();
  return nodes_.at(id);
}

void RunLedger::make_room() {
  if (nodes_.size() <= kNodesMax) return;
  const auto oldest = std::ranges::min_element(nodes_, {}, [](const auto& node) {
    return std::tuple(!node.second.lost, node.second.arrival);
  });
  nodes_.erase(oldest);
}

void RunLedger::report(const NodeId& node, const NodeTimes& times, TimePoint now) {
  const auto is_nonsense = [](const PlaceTimes& place) { return place.parts.sum() > kTimeMax; };
  if (times.places.size() > kPlacesMax || std::ranges::any_of(times.places, is_nonsense)) return;
  Node& here = node_of(node);
  if (here.lost || ended_) return;
  const TimePoint origin = now - longest(times);
  here.origin = here.places.empty() ? origin : std::min(here.origin, origin);
  here.places = times.places;
  here.reported = now;
  here.wants_account = times.wants_account;
  here.memory = times.memory;
  if (!times.command.empty()) command_ = times.command;
  pace(here, now);
  began_ = began_ ? std::min(*began_, origin) : origin;
}

std::map<NodeId, MemoryUse> RunLedger::memory(TimePoint now) const {
  std::map<NodeId, MemoryUse> all;
  for (const auto& [node, here] : nodes_) {
    if (!here.memory || here.lost) continue;
    MemoryUse& use = all[node] = *here.memory;
    if (use.behind && *use.behind > Milliseconds(0)) {
      *use.behind += std::chrono::duration_cast<Milliseconds>(now - here.reported);
    }
  }
  return all;
}

void RunLedger::lost(const NodeId& node, TimePoint now) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.lost || ended_) return;
  Node& here = it->second;
  for (PlaceTimes& place : here.places) {
    const bool computed = is_kept(place.at);
    const Time since = between(here.reported, now);
    place.parts[computed ? TimePart::kLost : place.at] += since;
    lose(place);
    place.at = TimePart::kGone;
  }
  here.reported = now;
  here.lost = now;
}

void RunLedger::happened(Incident incident) {
  if (ended_) return;
  const auto of_round = [&](const Incident& other) {
    return other.round == incident.round && other.kind == "worker_failed";
  };
  if (incident.kind == "node_lost") {
    std::erase_if(incidents_, [&](const Incident& other) {
      return of_round(other) && other.fault == fault_name(Fault::kPeerLost);
    });
  } else if (const auto first = std::ranges::find_if(incidents_, of_round);
             first != incidents_.end()) {
    const bool same = first->node == incident.node && first->local_rank == incident.local_rank;
    if (!same) return;
    first->fault = incident.fault;
    first->evidence = incident.evidence;
    return;
  }
  if (incidents_.size() < kIncidentsMax) incidents_.push_back(std::move(incident));
}

void RunLedger::round_began(int round, int world_size, bool kept, TimePoint now) {
  changes_ += kept ? 1 : 0;
  std::string cause;
  const bool answers = !incidents_.empty() && incidents_.back().action.empty();
  if (answers) {
    Incident& last = incidents_.back();
    last.action = "round " + std::to_string(round) + ", " + number_of(world_size, "rank");
    cause = last.who + " on " + last.where + ": " + last.what;
  }
  rounds_.push_back({round, world_size, now, std::move(cause)});
  if (rounds_.size() > kRoundsMax) rounds_.pop_front();
}

std::vector<RoundStatus> RunLedger::rounds(TimePoint now) const {
  const auto seconds = [this](TimePoint then) {
    return std::chrono::duration<double>(since_began(then)).count();
  };
  std::vector<RoundStatus> all;
  for (const Round& round : rounds_) {
    if (!all.empty()) all.back().to_s = seconds(round.began);
    all.push_back({.round = round.round,
                   .world_size = round.world_size,
                   .from_s = seconds(round.began),
                   .cause = round.cause});
  }
  if (ended_ && !all.empty()) all.back().to_s = std::chrono::duration<double>(wall(now)).count();
  return all;
}

std::string RunLedger::host_of(const NodeId& node) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? "" : it->second.host;
}

void RunLedger::end(TimePoint now) {
  if (!ended_) ended_ = now;
}

bool RunLedger::wants_account(const NodeId& node) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && it->second.wants_account;
}

Time RunLedger::since_began(TimePoint then) const {
  return began_ ? between(*began_, then) : Time{0};
}

Time RunLedger::wall(TimePoint now) const { return since_began(ended_.value_or(now)); }

// What was before the node came and after it went is kGone.
PlaceTimes RunLedger::place_at(const Node& node, const PlaceTimes& place, TimePoint now) const {
  PlaceTimes result = place;
  const TimePoint until = ended_.value_or(now);
  result.parts[place.at] += between(node.reported, until);
  const Time missing = wall(now) - result.parts.sum();
  DDPRUN_ASSERT(missing >= Time{-1});
  result.parts[TimePart::kGone] += std::max(missing, Time{0});
  return result;
}

LedgerTotals RunLedger::totals(TimePoint now) const {
  LedgerTotals totals{.wall = wall(now), .changes = changes_};
  for (const auto& [id, node] : nodes_) {
    for (const PlaceTimes& place : node.places) {
      totals.parts.add(place_at(node, place, now).parts);
      ++totals.places;
      // A worker that keeps its process has been in every change.
      totals.repeated = std::max(totals.repeated, place.repeated);
      if (!node.lost) totals.shards.add(place.rank, place.shards);
      totals.shards.won_us = std::min(totals.shards.won_us + place.won.count(), kTimeMax.count());
      const auto starts = parse_process_starts(place.starts);
      for (const ProcessStart& start : starts.value_or(std::vector<ProcessStart>())) {
        totals.starts.add(start);
      }
    }
  }
  return totals;
}

std::vector<RunLedger::Row> RunLedger::rows(TimePoint now) const {
  std::vector<Row> rows;
  for (const auto& [id, node] : nodes_) {
    for (std::size_t i = 0; i < node.places.size(); ++i) {
      Row& row = rows.emplace_back(Row{.node = id,
                                       .host = node.host,
                                       .times = place_at(node, node.places[i], now),
                                       .origin = since_began(node.origin)});
      row.steps_per_s = node.paces[i].steps_per_s;
      row.late_a_step = node.paces[i].late_a_step;
      row.cpu = node.paces[i].cpu;
      if (node.lost) row.gone_at = since_began(*node.lost);
    }
  }
  const auto key = [this](const Row& row) {
    const Node& node = nodes_.at(row.node);
    return std::tuple(lowest_rank(node.places), node.arrival, row.times.local_rank);
  };
  std::ranges::stable_sort(rows, {}, key);
  return rows;
}

// The part of RunLedger for the recent speed of the run and the ranks that hold it up.

namespace {

using Time = TimeParts::Time;

constexpr auto kPaceMin = std::chrono::seconds(2);  // Over less it would jump.
// Sync timers report the late ranks at most once in so many steps (docs/sync-timer.md).
constexpr std::uint64_t kWindow = 32;

}  // namespace

void RunLedger::pace(Node& node, TimePoint now) {
  const bool others = node.paces.size() != node.places.size();
  if (!others && now - node.paced < kPaceMin) return;
  const double seconds = std::chrono::duration<double>(now - node.paced).count();
  node.paces.resize(node.places.size());
  for (std::size_t i = 0; i < node.places.size(); ++i) {
    Pace& pace = node.paces[i];
    const PlaceTimes& place = node.places[i];
    const Pace before = pace;
    pace.steps = place.steps, pace.late = place.late, pace.ran = place.ran;
    if (others) {  // The beginning is unknown.
      pace.late_by = place.steps;
      pace.steps_per_s = pace.cpu = 0, pace.late_a_step = Time{0};
      continue;
    }
    const std::uint64_t steps = place.steps - std::min(place.steps, before.steps);
    const Time ran = std::max(place.ran - before.ran, Time{0});  // It may be another process.
    pace.steps_per_s = static_cast<double>(steps) / seconds;
    pace.cpu = std::chrono::duration<double>(ran).count() / seconds;
    pace_late(pace, std::max(place.late - before.late, Time{0}));
  }
  node.paced = now;
}

// If a window takes longer than the time between two reports, most of them have no new one: the
// last holds until two could have ended.
void RunLedger::pace_late(Pace& pace, Time more) {
  const std::uint64_t since = pace.steps - std::min(pace.steps, pace.late_by);
  if (more > Time{0}) {
    pace.late_a_step = more / static_cast<std::int64_t>(std::max<std::uint64_t>(since, 1));
    pace.late_by = pace.steps;
  } else if (since > 2 * kWindow) {
    pace.late_a_step = Time{0};
    pace.late_by = pace.steps - kWindow;  // The next one will be about steps from there, at most.
  }
}

std::optional<RunLedger::Progress> RunLedger::progress() const {
  std::optional<Progress> furthest;
  for (const auto& [id, node] : nodes_) {
    for (std::size_t i = 0; i < node.places.size() && !node.lost; ++i) {
      if (node.places[i].steps == 0) continue;
      if (!furthest) furthest.emplace();
      furthest->step = std::max(furthest->step, node.places[i].steps);
      furthest->steps_left = std::max(furthest->steps_left, node.places[i].steps_left);
      furthest->steps_per_s = std::max(furthest->steps_per_s, node.paces[i].steps_per_s);
    }
  }
  return furthest;
}

std::vector<LateStatus> RunLedger::late() const {
  std::vector<LateStatus> all;
  for (const auto& [id, node] : nodes_) {
    for (std::size_t i = 0; i < node.places.size() && !node.lost && !ended_; ++i) {
      const Pace& pace = node.paces[i];
      const PlaceTimes& place = node.places[i];
      const std::chrono::duration<double, std::milli> late = pace.late_a_step;
      if (place.rank < 0 || !is_late(late.count(), pace.steps_per_s)) continue;
      all.push_back({.rank = place.rank,
                     .host = node.host,
                     .late_ms = late.count(),
                     .phase = {},
                     .late_s = std::chrono::duration<double>(place.late).count(),
                     .steps = place.late_steps});
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &LateStatus::late_ms);
  all.resize(std::min(all.size(), LateStatus::kMost));
  return all;
}

}  // namespace ddprun::rendezvous
