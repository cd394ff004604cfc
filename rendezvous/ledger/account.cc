#include "rendezvous/ledger/account.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "common/ledger/time_parts.h"
#include "rendezvous/ledger/findings.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {
namespace {

using nlohmann::ordered_json;
using Time = TimeParts::Time;

constexpr std::size_t kLastWordsMax = 40;  // Lines.

// To a millisecond: what is drawn is no finer.
double seconds(Time time) {
  constexpr double kPerSecond = 1000;
  return std::round(std::chrono::duration<double>(time).count() * kPerSecond) / kPerSecond;
}

ordered_json run_json(const RunLedger& ledger, const AccountHead& head,
                      const std::vector<RunLedger::Row>& rows, TimePoint now) {
  std::set<NodeId> nodes;
  std::set<int> ranks;
  std::uint64_t steps = 0;
  for (const RunLedger::Row& row : rows) {
    nodes.insert(row.node);
    if (row.times.rank >= 0) ranks.insert(row.times.rank);
    steps = std::max(steps, row.times.steps);
  }
  std::size_t world_size = ranks.size();  // Ranks of places change as others come and go.
  for (const RoundStatus& round : ledger.rounds(now)) {
    world_size = std::max(world_size, static_cast<std::size_t>(std::max(round.world_size, 0)));
  }
  const LedgerTotals totals = ledger.totals(now);
  return {{"id", head.run_id},
          {"wall_s", seconds(ledger.wall(now))},
          {"queued_s", 0},
          {"world_size", world_size},
          {"nodes", nodes.size()},
          {"max_restarts", head.max_restarts},
          {"restarts", head.restarts},
          {"rounds", head.rounds},
          {"min_nodes", head.min_nodes},
          {"max_nodes", head.max_nodes},
          {"changes", totals.changes},
          {"steps_repeated", totals.repeated},
          {"moved_shards_won_s", seconds(Time(totals.shards.won_us))},
          {"steps", steps}};
}

ordered_json lines_of(const std::string& text) {
  ordered_json lines = ordered_json::array();
  for (std::size_t at = 0; at < text.size() && lines.size() < kLastWordsMax;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

ordered_json verdict_part(const Verdict& verdict) {
  ordered_json object = {{"kind", kind_name(verdict.kind)},
                         {"exit_code", verdict.exit_code},
                         {"text", verdict.text},
                         {"advice", verdict.advice},
                         {"victims", verdict.victims.size()}};
  if (!verdict.first_cause) return object;
  const WorkerDeath& first = *verdict.first_cause;
  object["first_cause"] = {{"rank", first.rank},
                           {"host", first.host},
                           {"what", what_happened(first)},
                           {"fault", fault_name(first.fault)}};
  if (first.steps > 0) object["first_cause"]["step"] = first.steps;
  object["last_words"] = lines_of(first.detail);
  return object;
}

ordered_json incidents_json(const RunLedger& ledger, const std::vector<RunLedger::Row>& rows,
                            const std::vector<IncidentCost>& losses) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const Incident& incident = ledger.incidents()[i];
    ordered_json slots = ordered_json::array();
    for (std::size_t s = 0; s < rows.size(); ++s) {
      const bool here =
          rows[s].node == incident.node &&
          (incident.local_rank < 0 || rows[s].times.local_rank == incident.local_rank);
      if (here) slots.push_back(s);
    }
    ordered_json object = {{"id", i + 1},
                           {"at_s", seconds(ledger.since_began(incident.at))},
                           {"kind", incident.kind},
                           {"fault", incident.fault},
                           {"what", incident.what},
                           {"who", incident.who},
                           {"where", incident.where},
                           {"slots", std::move(slots)},
                           {"evidence", incident.evidence},
                           {"action", incident.action}};
    if (losses[i].back > Time{0}) object["back_s"] = seconds(losses[i].back);
    if (losses[i].lost > Time{0}) object["lost_s"] = seconds(losses[i].lost);
    object["cost_rank_s"] = seconds(losses[i].cost);
    list.push_back(std::move(object));
  }
  return list;
}

// The place's bins on the run's. Null: it made no steps.
ordered_json bins_json(const RunLedger::Row& row, Time wall) {
  const auto bins = parse_time_bins(row.times.bins);
  if (!bins || bins->size() == 0) return nullptr;
  constexpr std::size_t count = TimeBins::kBinsMax;
  std::array<std::string, kBinParts> signs;
  for (std::size_t i = 0; i < count; ++i) {
    const auto edge = [&](std::size_t k) {
      return Time(wall.count() * static_cast<std::int64_t>(k) / static_cast<std::int64_t>(count)) -
             row.origin;
    };
    const auto shares = bins->shares(edge(i), edge(i + 1));
    for (std::size_t p = 0; p < kBinParts; ++p) {
      signs[p] += shares ? share_sign((*shares)[p]) : '.';
    }
  }
  return signs;
}

ordered_json starts_json(const RunLedger::Row& row) {
  ordered_json list = ordered_json::array();
  const auto starts = parse_process_starts(row.times.starts);
  for (const ProcessStart& start : starts.value_or(std::vector<ProcessStart>())) {
    ordered_json object = {{"preloaded", start.preloaded}};
    for (std::size_t i = 0; i < kStartParts; ++i) {
      const auto part = static_cast<StartPart>(i);
      if (const auto took = start[part]) {
        object[std::string(name_of(part)) + "_s"] = seconds(Time(*took));
      }
    }
    list.push_back(std::move(object));
  }
  return list;
}

ordered_json slots_json(const std::vector<RunLedger::Row>& rows, Time wall,
                        const std::map<std::string, int>& hosts) {
  ordered_json list = ordered_json::array();
  for (const RunLedger::Row& row : rows) {
    ordered_json parts = ordered_json::object();
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      const Time time = row.times.parts.times[i];
      if (time > Time{0}) parts[name_of(static_cast<TimePart>(i))] = seconds(time);
    }
    ordered_json object = {{"node", hosts.at(row.host)},         {"host", row.host},
                           {"local_rank", row.times.local_rank}, {"rank", row.times.rank},
                           {"steps", row.times.steps},           {"parts_s", std::move(parts)}};
    if (ordered_json bins = bins_json(row, wall); !bins.is_null()) object["bins"] = std::move(bins);
    if (row.times.late_steps > 0) {
      object["late_s"] = seconds(row.times.late);
      object["late_steps"] = row.times.late_steps;
    }
    if (row.times.shards > 0) object["shards"] = row.times.shards;
    if (ordered_json starts = starts_json(row); !starts.empty()) {
      object["starts"] = std::move(starts);
    }
    list.push_back(std::move(object));
  }
  return list;
}

// Places with the same span stand in one, as ranges.
ordered_json spans_json(const std::vector<DrawnRow>& rows) {
  using Key = std::tuple<double, double, TimePart>;
  std::map<Key, std::vector<std::pair<std::size_t, std::size_t>>> merged;
  for (std::size_t s = 0; s < rows.size(); ++s) {
    for (const TimeSpan& span : rows[s].spans) {
      auto& ranges = merged[{seconds(span.from), seconds(span.until), span.part}];
      if (!ranges.empty() && ranges.back().second + 1 == s) {
        ranges.back().second = s;
      } else {
        ranges.emplace_back(s, s);
      }
    }
  }
  ordered_json list = ordered_json::array();
  for (const auto& [key, ranges] : merged) {
    const auto& [from, until, part] = key;
    list.push_back({{"from_s", from}, {"to_s", until}, {"part", name_of(part)}, {"slots", ranges}});
  }
  return list;
}

}  // namespace

std::string account_json(const RunLedger& ledger, const AccountHead& head, TimePoint now) {
  const std::vector<RunLedger::Row> rows = ledger.rows(now);
  const Time wall = ledger.wall(now);
  const std::vector<DrawnRow> drawn = draw(rows, wall);
  const std::vector<IncidentCost> lost = losses(ledger.incidents(), drawn, ledger);
  std::map<std::string, int> hosts;
  ordered_json names = ordered_json::array();
  for (const RunLedger::Row& row : rows) {
    const auto [it, is_new] = hosts.emplace(row.host, static_cast<int>(hosts.size()));
    if (is_new) names.push_back(row.host);
  }
  ordered_json account = {{"schema", kAccountSchema}, {"run", run_json(ledger, head, rows, now)}};
  if (head.verdict) account["verdict"] = verdict_part(*head.verdict);
  account["incidents"] = incidents_json(ledger, rows, lost);
  account["hosts"] = std::move(names);
  account["slots"] = slots_json(rows, wall, hosts);
  account["spans"] = spans_json(drawn);
  const bool stopped = head.verdict && head.verdict->kind == Verdict::Kind::kInterrupted;
  const Findings found = findings(ledger, rows, lost, now, stopped);
  account["findings"] = {{"incidents", found.incidents}, {"ribbon", found.ribbon}};
  account["findings"]["help"] = ordered_json::array();
  for (const Findings::Help& help : found.help) {
    account["findings"]["help"].push_back({{"rank_s", seconds(help.saving)}, {"text", help.text}});
  }
  return account.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::rendezvous
