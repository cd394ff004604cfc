#include "launcher/whatif/run_facts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/ledger/time_parts.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

// Of what a run has never seen.
constexpr double kChange = 0.5, kGrowth = 0.5;
constexpr double kNotice = 1;  // heartbeat_timeout.
constexpr double kRepair = 1'800;
constexpr double kCheckpoint = 10;
constexpr double kNodeLossShare = 0.5;
// 6.5 failures in 1,000 days of a node (Kokolis et al. 2024, docs/ledger.md).
constexpr double kNodeMtbf = 86'400 * 1'000 / 6.5;

constexpr double kSecondsMax = 24.0 * 3600 * 3650;
constexpr int kCountMax = 1'000'000;
constexpr std::size_t kCasesMax = 10'000'000;  // Places of spans that are read.
// The daemon notes an incident by its own clock, a little after the agent.
constexpr double kSlack = 0.25;

double number(const json& object, const char* name, double max) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number()) return 0;
  const auto value = it->get<double>();
  return std::isfinite(value) ? std::clamp(value, 0.0, max) : 0;
}
double seconds(const json& object, const char* name) { return number(object, name, kSecondsMax); }
int count(const json& object, const char* name) {
  return static_cast<int>(number(object, name, kCountMax));
}

std::string text(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const json& list(const json& object, const char* name) {
  static const json kNone = json::array();
  const auto it = object.find(name);
  return it != object.end() && it->is_array() ? *it : kNone;
}

// A mean.
struct Mean {
  double sum = 0;
  int cases = 0;
  void add(double value) { sum += value, ++cases; }
  RunFact fact(double otherwise) const {
    return cases > 0 ? RunFact{sum / cases, cases} : RunFact{otherwise, 0};
  }
};

struct Incident {
  double at = 0, back = 0;
  bool took_node = false;
  std::vector<std::size_t> slots{};
};

std::vector<Incident> read_incidents(const json& account) {
  std::vector<Incident> all;
  for (const json& item : list(account, "incidents")) {
    if (!item.is_object()) continue;
    Incident& incident = all.emplace_back(Incident{.at = seconds(item, "at_s"),
                                                   .back = seconds(item, "back_s"),
                                                   .took_node = text(item, "kind") == "node_lost"});
    for (const json& slot : list(item, "slots")) {
      if (slot.is_number_unsigned()) incident.slots.push_back(slot.get<std::size_t>());
    }
  }
  std::ranges::stable_sort(all, {}, &Incident::at);
  return all;
}

// Over all places.
struct Sums {
  double kept = 0, in_run = 0, start = 0, spare = 0, lost = 0, checkpoint = 0;
  double whole = 0;    // Of kept steps: of those that are not divided into phases, as an elastic
                       // job's are; ...
  double divided = 0;  // ... and of the others.
  double steps = 0, checkpoints = 0;
  int places = 0;
};

Sums read_sums(const json& account) {
  Sums sums;
  for (const json& slot : list(account, "slots")) {
    if (!slot.is_object()) continue;
    ++sums.places;
    sums.steps += number(slot, "steps", 1e12);
    sums.checkpoints += number(slot, "checkpoints", 1e12);
    const auto parts = slot.find("parts_s");
    if (parts == slot.end() || !parts->is_object()) continue;
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      const auto part = static_cast<TimePart>(i);
      const double time = seconds(*parts, name_of(part));
      if (part == TimePart::kSpare) sums.spare += time;
      if (part == TimePart::kSpare || part == TimePart::kGone) continue;
      sums.in_run += time;
      if (is_kept(part)) sums.kept += time;
      if (part == TimePart::kSteps) sums.whole += time;
      if (part == TimePart::kForward || part == TimePart::kBackward) sums.divided += time;
      if (part == TimePart::kLost) sums.lost += time;
      if (part == TimePart::kCheckpoint) sums.checkpoint += time;
      const bool at_ends =
          part == TimePart::kRendezvous || part == TimePart::kStartup || part == TimePart::kEnd ||
          // Of a process that died before its first step the start is unknown time.
          part == TimePart::kUnknown;
      if (at_ends) sums.start += time;
    }
  }
  return sums;
}

// What the incidents of an elastic job cost the places that it hit, and the others.
struct Pauses {
  Mean change, growth, refill;
  double lost = 0;
};

Pauses read_pauses(const json& account, const std::vector<Incident>& incidents) {
  Pauses pauses;
  std::size_t cases = 0;
  for (const json& span : list(account, "spans")) {
    if (!span.is_object()) continue;
    const std::string part = text(span, "part");
    const bool is_lost = part == name_of(TimePart::kLost);
    if (!is_lost && part != name_of(TimePart::kRestart)) continue;
    const double from = seconds(span, "from_s"), to = seconds(span, "to_s");
    const double known = (is_lost ? to : from) + kSlack;
    const auto next = std::ranges::upper_bound(incidents, known, {}, &Incident::at);
    if (next == incidents.begin() || to <= from) continue;
    const Incident& incident = *std::prev(next);
    const bool is_first = from <= incident.at + kSlack;
    for (const json& range : list(span, "slots")) {
      if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
          !range[1].is_number_unsigned()) {
        continue;
      }
      const auto last = std::min<std::size_t>(range[1].get<std::size_t>(), kCountMax);
      for (auto slot = range[0].get<std::size_t>(); slot <= last && ++cases < kCasesMax; ++slot) {
        const bool is_hit = std::ranges::find(incident.slots, slot) != incident.slots.end();
        if (is_hit && !is_lost && is_first) pauses.refill.add(to - incident.at);
        if (is_hit) continue;
        if (is_lost) {
          pauses.lost += to - from;
        } else if (is_first) {
          pauses.change.add(to - from);
        } else {
          pauses.growth.add(to - from);
        }
      }
    }
  }
  pauses.change.sum += pauses.change.cases > 0 ? pauses.lost : 0;
  return pauses;
}

// From the loss of a node until the next one that came.
Mean read_repairs(const json& account, const std::vector<Incident>& incidents) {
  std::vector<double> came;
  for (const json& span : list(account, "spans")) {
    if (!span.is_object() || text(span, "part") != name_of(TimePart::kGone)) continue;
    if (seconds(span, "from_s") == 0) came.push_back(seconds(span, "to_s"));
  }
  std::ranges::sort(came);
  Mean repairs;
  auto next = came.begin();
  for (const Incident& incident : incidents) {
    if (!incident.took_node) continue;
    next = std::upper_bound(next, came.end(), incident.at);
    if (next == came.end()) break;
    repairs.add(*next - incident.at);
    next = std::upper_bound(next, came.end(), *next + kSlack);  // All places of that node.
  }
  return repairs;
}

// The run's size, as far as the account has it.
RunShape read_shape(const json& run, const Sums& sums, bool keeps_workers) {
  const int all = std::max(count(run, "nodes"), 1);
  const int max = count(run, "max_nodes");
  RunShape shape;
  shape.nodes_max = max > 0 ? std::min(max, all) : all;
  const int min = count(run, "min_nodes");
  shape.nodes_min = min > 0 ? std::min(min, shape.nodes_max) : shape.nodes_max;
  const int ranks = std::max(count(run, "world_size"), 1);
  shape.node_ranks = std::max((ranks + shape.nodes_max - 1) / shape.nodes_max, 1);
  const double wall = seconds(run, "wall_s");
  const double in_reserve = wall > 0 ? sums.spare / wall : 0;  // Places.
  const int more = sums.places / all - shape.node_ranks;
  if (keeps_workers && more > 0) {
    shape.spares = more;
  } else {
    shape.spare_nodes =
        static_cast<int>(std::lround(std::min<double>(in_reserve, kCountMax) / shape.node_ranks));
  }
  return shape;
}

// The median would leave out the rare long ones, which cost most.
Mean read_restarts(const std::vector<Incident>& incidents) {
  Mean restarts;
  for (const Incident& incident : incidents) {
    if (!incident.took_node && incident.back > 0) restarts.add(incident.back);
  }
  return restarts;
}

// What a checkpoint takes, and how much is computed between two. An older ddprun did not count
// them: then a failure undoes half of what is between two, on average.
void read_checkpoints(const Sums& sums, RunFacts& facts) {
  const double computed = sums.kept + sums.lost;
  const double undone =
      facts.faults > 0 ? sums.lost / (static_cast<double>(facts.ranks) * facts.faults) : 0;
  double count = sums.checkpoints;
  if (count < 1 && sums.checkpoint > 0 && undone > 0 && facts.ranks > 0) {
    count = computed / (2 * undone);
  }
  facts.checkpoint = {kCheckpoint, 0};
  if (count < 1 || computed <= 0) return;
  facts.checkpoint = {sums.checkpoint / count,
                      static_cast<int>(std::min<double>(count, kCountMax))};
  facts.shape.interval = std::max(computed / count, 1e-6);
}

RunFacts read_account(const json& account, const json& run) {
  const Sums sums = read_sums(account);
  const std::vector<Incident> incidents = read_incidents(account);
  RunFacts facts{
      .run_id = text(run, "id"),
      .wall = seconds(run, "wall_s"),
      .ranks = count(run, "world_size"),
      .keeps_workers = count(run, "changes") > 0 || (sums.whole > 0 && sums.divided == 0),
      .has_goodput = sums.kept + sums.lost > 0,
      .goodput = sums.in_run > 0 ? sums.kept / sums.in_run : 0,
      .faults = static_cast<int>(incidents.size())};
  facts.shape = read_shape(run, sums, facts.keeps_workers);
  facts.start = sums.start / facts.shape.ranks_max();
  if (sums.steps > 0) facts.step = {(sums.kept + sums.lost) / sums.steps, 1};

  const Pauses pauses = read_pauses(account, incidents);
  facts.restart = read_restarts(incidents).fact(facts.start);
  facts.change = pauses.change.fact(kChange);
  facts.growth = pauses.growth.fact(kGrowth);
  const bool is_seen = facts.shape.spares == 0;  // Else spares take the seats meanwhile.
  facts.refill = is_seen ? pauses.refill.fact(facts.start) : RunFact{facts.start, 0};
  facts.notice = {kNotice, 0};
  facts.repair = read_repairs(account, incidents).fact(kRepair);
  read_checkpoints(sums, facts);

  const auto lost_nodes = std::ranges::count(incidents, true, &Incident::took_node);
  facts.node_mtbf = {kNodeMtbf, 0};
  facts.node_loss_share = {kNodeLossShare, 0};
  if (facts.faults > 0 && facts.wall > 0) {
    facts.node_mtbf = {facts.wall * facts.shape.nodes_max / facts.faults, facts.faults};
    facts.node_loss_share = {static_cast<double>(lost_nodes) / facts.faults, facts.faults};
  }
  return facts;
}

}  // namespace

RunTimes RunFacts::times() const {
  return {.keeps_workers = keeps_workers,
          .start = start,
          .restart = restart.value,
          .change = change.value,
          .growth = growth.value,
          .refill = refill.value,
          .notice = notice.value,
          .repair = repair.value,
          .checkpoint = checkpoint.value};
}

OutageRate RunFacts::rate() const {
  return {.node_mtbf = node_mtbf.value, .node_loss_share = node_loss_share.value};
}

Result<RunFacts> read_run_facts(std::string_view text_of_file) {
  constexpr int kDepthMax = 64;
  const auto is_kept = [](int depth, json::parse_event_t, json&) { return depth <= kDepthMax; };
  json account = json::parse(text_of_file, is_kept, /*allow_exceptions=*/false);
  if (account.is_object() && account.contains("account")) {
    json inner = std::move(account["account"]);
    account = std::move(inner);
  }
  const auto run = account.is_object() ? account.find("run") : account.end();
  if (!account.is_object() || text(account, "schema") != kAccountSchema || run == account.end() ||
      !run->is_object()) {
    return Failure{Errc::kBadMessage,
                   "is no account of a run, as `ddprunctl report RUN` prints it"};
  }
  RunFacts facts = read_account(account, *run);
  if (facts.wall < 1e-3)
    return Failure{Errc::kBadMessage, "is the account of a run without length"};
  return facts;
}

}  // namespace ddprun::launcher
