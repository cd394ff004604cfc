#include "launcher/doctor/compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "common/assert.h"
#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/finding.h"

namespace ddprun::doctor {
namespace {

// What the comparisons below say better.
constexpr std::string_view kCompared[] = {"clock", "program", "speed", "port"};

bool is_compared(const Check& check) {
  return std::find(std::begin(kCompared), std::end(kCompared), check.name) != std::end(kCompared);
}

// One node may have several findings of a name, as of what was left behind: the worst stands here,
// and says of how many.
struct OfName {
  std::vector<Cell> cells;
  Finding worst;
};

void add_finding(OfName& row, std::size_t node, Finding finding) {
  Cell& cell = row.cells[node];
  const bool first = cell.value.empty();
  if (first || finding.status > cell.status) cell = {finding.value, finding.status};
  if (row.worst.name.empty() || finding.status > row.worst.status) row.worst = std::move(finding);
}

void add_check(const Check& check, const Nodes& nodes, const Need& need, Rows& rows) {
  std::vector<std::string> order;
  std::map<std::string, OfName> found;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].error.empty()) continue;
    for (Finding& finding : judge(check, nodes[i].facts, need)) {
      auto [entry, is_new] = found.try_emplace(finding.name);
      if (is_new) order.push_back(finding.name);
      if (is_new) entry->second.cells.resize(nodes.size());
      add_finding(entry->second, i, std::move(finding));
    }
  }
  for (const std::string& name : order) {
    OfName& of_name = found.at(name);
    Row row = row_of(name, std::move(of_name.cells));
    row.group = check.group;
    row.finding = std::move(of_name.worst);
    rows.push_back(std::move(row));
  }
}

void add_unreachable(const Nodes& nodes, Rows& rows) {
  std::vector<Cell> cells;
  std::string sentence;
  for (const NodeFacts& node : nodes) {
    const bool lost = !node.error.empty();
    cells.push_back({lost ? "no" : "yes", lost ? Status::kFail : Status::kOk});
    if (lost && sentence.empty()) sentence = node.error;
  }
  if (sentence.empty()) return;
  Row row = row_of("ssh", std::move(cells));
  row.finding.note = sentence;
  row.where.clear();
  rows.push_back(std::move(row));
}

void name_nodes(const Nodes& nodes, Row& row) {
  DDPRUN_ASSERT(row.cells.size() == nodes.size());
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (row.cells[i].status != row.finding.status) continue;
    names += (names.empty() ? "on " : ", ") + nodes[i].host;
    ++count;
  }
  const bool good = row.finding.status <= Status::kSkipped;
  if (!good && count < nodes.size() && row.finding.name != "ssh") row.where = names;
}

}  // namespace

Row row_of(std::string name, std::vector<Cell> cells) {
  DDPRUN_ASSERT(!cells.empty());
  Row row{.finding = {.name = std::move(name)}, .cells = std::move(cells)};
  const auto worst =
      std::max_element(row.cells.begin(), row.cells.end(),
                       [](const Cell& a, const Cell& b) { return a.status < b.status; });
  row.finding.status = worst->status;
  row.finding.value = worst->value;
  return row;
}

std::string usual(const std::vector<std::string>& values) {
  std::map<std::string, std::size_t> counts;
  std::size_t known = 0;
  std::string first;
  for (const std::string& value : values) {
    if (value.empty()) continue;
    if (first.empty()) first = value;
    ++counts[value];
    ++known;
  }
  for (const auto& [value, count] : counts) {
    if (2 * count > known) return value;
  }
  return first;
}

HealthReport report_of_nodes(const std::vector<NodeFacts>& nodes, const Need& need) {
  DDPRUN_ASSERT(!nodes.empty());
  HealthReport report;
  for (const NodeFacts& node : nodes) report.hosts.push_back(node.host);
  add_unreachable(nodes, report.rows);
  compare_versions(nodes, report.rows);
  compare_files(nodes, need, report.rows);
  compare_bits(nodes, report.rows);
  compare_mtu(nodes, report.rows);
  compare_clocks(nodes, report.rows);
  compare_endpoint(nodes, report.rows);
  compare_reach(nodes, report.rows);
  compare_rates(nodes, report.rows);
  compare_loss(nodes, report.rows);
  compare_speed(nodes, report.rows);
  for (Row& row : report.rows) row.compared = true;
  for (const Check& check : all_checks()) {
    if (!is_compared(check)) add_check(check, nodes, need, report.rows);
  }
  for (Row& row : report.rows) name_nodes(nodes, row);
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const Row& a, const Row& b) {
    const Status least = Status::kSkipped;  // Good rows keep their order.
    return std::max(a.finding.status, least) > std::max(b.finding.status, least);
  });
  return report;
}

// What should be equal on all nodes.

namespace {

struct Equal {
  std::string_view name;
  Text fact;
  Status if_other;
  std::string_view cure;
};

// Kernels and C libraries may differ: what matters of them shows in "same bits".
constexpr Equal kEqual[] = {
    {"ddprun", fact::kVersion, Status::kFail, "install one version of ddprun on all nodes"},
    {"GPU driver", fact::kDriver, Status::kWarn, "install one driver on all nodes"},
    {"kernel", fact::kKernel, Status::kSkipped, ""},
    {"C library", fact::kLibc, Status::kSkipped, ""},
};

std::vector<Cell> cells_of(const std::vector<std::string>& values, Status if_other) {
  const std::string most = usual(values);
  std::vector<Cell> cells;
  for (const std::string& value : values) {
    const bool other = !value.empty() && value != most;
    cells.push_back({value, other ? if_other : Status::kOk});
  }
  return cells;
}

bool is_known(const std::vector<std::string>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](const auto& value) { return !value.empty(); });
}

// Version and the first signs of the hash; "-" where the node has no such file.
std::vector<std::string> values_of_file(const Nodes& nodes, const std::string& name) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    std::string value = node.error.empty() ? "missing" : "";
    for (const Facts& file : node.facts.list(fact::kFiles)) {
      if (file.text(fact::kFileName) != name) continue;
      const std::string version = file.text(fact::kFileVersion);
      const std::string hash = file.text(fact::kFileHash).substr(0, 6);
      value = version.empty() || hash.empty() ? version + hash : version + " " + hash;
    }
    values.push_back(std::move(value));
  }
  return values;
}

std::string kinds_of_gpus(const Facts& facts) {
  std::map<std::string, int> counts;
  for (const Facts& gpu : facts.list(fact::kGpus)) ++counts[gpu.text(fact::kGpuName)];
  std::string kinds;
  for (const auto& [name, count] : counts) {
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(count) + " × " + name;
  }
  return kinds.empty() ? "none" : kinds;
}

void compare_gpu_kinds(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> kinds;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    kinds.push_back(node.error.empty() ? kinds_of_gpus(node.facts) : "");
    any = any || !node.facts.list(fact::kGpus).empty();
  }
  if (!any) return;
  Row row = row_of("GPUs of a kind", cells_of(kinds, Status::kWarn));
  row.group = Group::kGpu;
  if (row.finding.status != Status::kOk) row.finding.note = "all ranks wait for the slowest kind";
  rows.push_back(std::move(row));
}

std::string program_error(const Nodes& nodes) {
  for (const NodeFacts& node : nodes) {
    if (const std::string error = node.facts.text(fact::kProgramError); !error.empty())
      return error;
  }
  return "";
}

}  // namespace

void compare_versions(const Nodes& nodes, Rows& rows) {
  for (const Equal& equal : kEqual) {
    std::vector<std::string> values;
    for (const NodeFacts& node : nodes) values.push_back(node.facts.text(equal.fact));
    if (!is_known(values)) continue;
    Row row = row_of(std::string(equal.name), cells_of(values, equal.if_other));
    if (row.finding.status > Status::kSkipped) {
      row.finding.note = "usually " + usual(values);
      row.finding.cure = equal.cure;
    }
    rows.push_back(std::move(row));
  }
  compare_gpu_kinds(nodes, rows);
}

void compare_files(const Nodes& nodes, const Need& need, Rows& rows) {
  std::set<std::string> names;
  for (const NodeFacts& node : nodes) {
    for (const Facts& file : node.facts.list(fact::kFiles))
      names.insert(file.text(fact::kFileName));
  }
  if (!need.program.empty()) names.insert("program");
  for (const std::string& name : names) {
    const std::vector<std::string> values = values_of_file(nodes, name);
    Row row = row_of(name, cells_of(values, Status::kFail));
    if (name == "program" && !program_error(nodes).empty()) {
      for (Cell& cell : row.cells) {
        if (cell.value == "missing") cell.status = Status::kFail;
      }
      row = row_of(name, std::move(row.cells));
      row.finding.note = program_error(nodes);
    } else if (row.finding.status == Status::kFail) {
      row.finding.note = "ranks that run different code may hang or compute different results";
      row.finding.cure = name == "program" ? "rsync " + need.program + " to all nodes"
                                           : "install one version of " + name + " on all nodes";
    }
    rows.push_back(std::move(row));
  }
}

void compare_bits(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> hashes;
  for (const NodeFacts& node : nodes) hashes.push_back(node.facts.text(fact::kBits).substr(0, 6));
  if (!is_known(hashes)) return;
  Row row = row_of("same bits", cells_of(hashes, Status::kWarn));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "equal input gives different bits there: a different processor or C library";
    row.finding.cure = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA on all nodes";
  }
  rows.push_back(std::move(row));
}

void compare_mtu(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    // Of the interface whose address the others know.
    std::string value;
    const std::string own = node.facts.text(fact::kMeetAddress);
    for (const Facts& interface : node.facts.list(fact::kInterfaces)) {
      const bool is_it = own.empty() ? value.empty() : interface.text(fact::kAddress) == own;
      const auto mtu = interface.get(fact::kMtu);
      if (is_it && mtu) value = count_text(*mtu);
    }
    values.push_back(std::move(value));
  }
  if (!is_known(values)) return;
  Row row = row_of("MTU", cells_of(values, Status::kWarn));
  row.group = Group::kNetwork;
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "usually " + usual(values) + "; packets may be dropped on the way";
    std::string mtu = usual(values);
    mtu.erase(std::remove(mtu.begin(), mtu.end(), ','), mtu.end());
    row.finding.cure = "ip link set INTERFACE mtu " + mtu;
  }
  rows.push_back(std::move(row));
}

// Clocks, and who reaches whom how fast.

namespace {

constexpr double kClockMs = 1'000;   // Files that look older than they are, certificates, logs.
constexpr double kSlowLink = 5;      // Times slower than the others'; other load makes it 2.
constexpr double kSlowGbS = 0.03;    // A quarter of a Gb/s.
constexpr double kLossShare = 0.01;  // Of all segments.
constexpr std::int64_t kLossLeast = 20;

std::string signed_ms(double ms) { return (ms < 0 ? "-" : "+") + ms_text(std::abs(ms)); }

// That of the middle node, so that the odd one is named; of two nodes the first one's.
double reference_clock(std::vector<double> offsets) {
  if (offsets.size() < 3) return offsets.front();
  std::sort(offsets.begin(), offsets.end());
  return offsets[offsets.size() / 2];
}

// From one node to another; absent: not measured.
std::optional<double> rate(const Nodes& nodes, std::size_t from, std::size_t to) {
  for (const Facts& peer : nodes[from].facts.list(fact::kPeers)) {
    const auto rate = peer.get(fact::kPeerGbS);  // Some were only reached.
    if (rate && peer.text(fact::kPeer) == nodes[to].host) return rate;
  }
  return std::nullopt;
}

// The best of what a node sends to others, or receives from them.
struct Rates {
  std::optional<double> sends, receives;
};

Rates rates_of(const Nodes& nodes, std::size_t node) {
  Rates best;
  for (std::size_t other = 0; other < nodes.size(); ++other) {
    if (other == node) continue;
    const auto sent = rate(nodes, node, other), received = rate(nodes, other, node);
    if (sent) best.sends = std::max(best.sends.value_or(0), *sent);
    if (received) best.receives = std::max(best.receives.value_or(0), *received);
  }
  return best;
}

bool is_slow(const std::optional<double>& rate, double peers) {
  return rate && (*rate < kSlowGbS || *rate * kSlowLink < peers);
}

// A node that sends slowly, unless it receives well and sends to slow nodes only: those are to
// blame.
bool is_to_blame(const Nodes& nodes, std::size_t node, double peers) {
  const Rates own = rates_of(nodes, node);
  if (!is_slow(own.sends, peers)) return false;
  if (!own.receives || is_slow(own.receives, peers)) return true;
  for (std::size_t other = 0; other < nodes.size(); ++other) {
    const bool sends_there = other != node && rate(nodes, node, other).has_value();
    if (sends_there && !is_slow(rates_of(nodes, other).sends, peers)) return true;
  }
  return false;
}

void push(Row row, Rows& rows) {
  row.group = Group::kNetwork;
  rows.push_back(std::move(row));
}

}  // namespace

void compare_clocks(const Nodes& nodes, Rows& rows) {
  std::vector<double> offsets;
  for (const NodeFacts& node : nodes) {
    if (const auto offset = node.facts.get(fact::kClockOffsetMs)) offsets.push_back(*offset);
  }
  if (offsets.size() < 2) return;
  const double reference = reference_clock(offsets);
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const auto offset = node.facts.get(fact::kClockOffsetMs);
    if (!offset) {
      cells.push_back({});
      continue;
    }
    const double off = *offset - reference;
    const double doubt = 2 * node.facts.get_or(fact::kClockDoubtMs, 0.0);
    const bool wrong = std::abs(off) - doubt > kClockMs;
    // An offset within what the measurement itself may be off by is none.
    const bool equal = std::abs(off) <= std::max(doubt, 1.0);
    cells.push_back({equal ? "same" : signed_ms(off), wrong ? Status::kWarn : Status::kOk});
  }
  Row row = row_of("clock", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "start its time service";
    row.finding.cure = "systemctl restart chronyd";
  }
  push(std::move(row), rows);
}

void compare_endpoint(const Nodes& nodes, Rows& rows) {
  const Facts& host = nodes.front().facts;
  const auto port = host.get(fact::kEndpoint);
  if (!port) return;
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const std::string error = &node == &nodes.front() ? node.facts.text(fact::kEndpointError)
                                                      : node.facts.text(fact::kMeetError);
    const auto ms = node.facts.get(fact::kMeetMs);
    if (!error.empty())
      cells.push_back({error, Status::kFail});
    else
      cells.push_back({ms ? ms_text(*ms) : "", Status::kOk});
  }
  Row row = row_of("reaches :" + std::to_string(*port), std::move(cells));
  if (row.finding.status == Status::kFail) {
    row.finding.note = "the nodes meet there; a firewall, or a name that is not known?";
    row.finding.cure = "nc -vz " + nodes.front().host + " " + std::to_string(*port);
  }
  push(std::move(row), rows);
}

void compare_reach(const Nodes& nodes, Rows& rows) {
  std::vector<Cell> cells;
  std::string sentence, cure;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    Cell cell;
    int reached = 0;
    for (const Facts& peer : node.facts.list(fact::kPeers)) {
      any = true;
      const std::string error = peer.text(fact::kPeerError), name = peer.text(fact::kPeer);
      if (error.empty()) ++reached;
      if (error.empty() || cell.status == Status::kFail) continue;
      cell = {"not " + name, Status::kFail};
      if (sentence.empty()) {
        sentence = node.host + " to " + name + ": " + error;
        cure = "nc -vz " + name + " PORT";
      }
    }
    if (cell.value.empty() && node.error.empty()) cell.value = "all " + std::to_string(reached);
    cells.push_back(std::move(cell));
  }
  if (!any) return;
  Row row = row_of("reach each other", std::move(cells));
  row.finding.note = sentence;
  row.finding.cure = cure;
  push(std::move(row), rows);
}

void compare_rates(const Nodes& nodes, Rows& rows) {
  std::vector<double> known;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (const auto rate = rates_of(nodes, i).sends) known.push_back(*rate);
  }
  if (known.empty()) return;
  std::sort(known.begin(), known.end());
  const double peers = known[known.size() / 2];
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto rate = rates_of(nodes, i).sends;
    const bool slow = is_to_blame(nodes, i, peers);
    cells.push_back({rate ? number_text(*rate) + " GB/s" : "", slow ? Status::kWarn : Status::kOk});
  }
  Row row = row_of("to each other", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "over one TCP connection; the others have " + number_text(peers) + " GB/s";
    if (peers < kSlowGbS)
      row.finding.note = "over one TCP connection: less than a card of 1 Gb/s has";
    row.finding.cure = "ethtool INTERFACE";
  }
  push(std::move(row), rows);
}

void compare_loss(const Nodes& nodes, Rows& rows) {
  std::vector<Cell> cells;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    std::int64_t sent = 0, again = 0;
    for (const Facts& peer : node.facts.list(fact::kPeers)) {
      sent += peer.get_or(fact::kPeerSent, std::int64_t{0});
      again += peer.get_or(fact::kPeerAgain, std::int64_t{0});
    }
    any = any || sent > 0;
    const double share = sent > 0 ? static_cast<double>(again) / static_cast<double>(sent) : 0;
    const bool lossy = again >= kLossLeast && share > kLossShare;
    cells.push_back(
        {sent > 0 ? number_text(100 * share) + " %" : "", lossy ? Status::kWarn : Status::kOk});
  }
  if (!any) return;
  Row row = row_of("packet loss", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "of what it sends is sent again; a cable, or a switch that is too small?";
    row.finding.cure = "ip -s -s link";
  }
  push(std::move(row), rows);
}

// Which node is slower than its peers: every rank of a run waits for it.

namespace {

// Slower than others by so much is no chance: the best of many short pieces is compared, which
// other load hardly touches.
constexpr double kSlowCompute = 1.8;
constexpr double kSlowMemory = 4;  // Neighbours share it.

struct Measure {
  std::string_view name;
  Real fact;
  double slow;
  bool more_is_better;
  std::string (*text)(double);
};

std::string rate_text(double rate) { return number_text(rate) + " GB/s"; }

constexpr Measure kMeasures[] = {
    {"computing", fact::kChunkMs, kSlowCompute, false, ms_text},
    {"memory speed", fact::kMemoryGbS, kSlowMemory, true, rate_text},
};

// Of two the better one.
double typical(std::vector<double> values, bool more_is_better) {
  if (more_is_better)
    std::sort(values.begin(), values.end(), std::greater<>());
  else
    std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

void compare(const Measure& measure, const Nodes& nodes, Rows& rows) {
  std::vector<double> known;
  for (const NodeFacts& node : nodes) {
    if (const auto value = node.facts.get(measure.fact)) known.push_back(*value);
  }
  if (known.size() < 2) return;
  const double peers = typical(known, measure.more_is_better);
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const auto value = node.facts.get(measure.fact);
    if (!value) {
      cells.push_back({});
      continue;
    }
    const bool slow =
        measure.more_is_better ? *value * measure.slow < peers : *value > peers * measure.slow;
    cells.push_back({measure.text(*value), slow ? Status::kWarn : Status::kOk});
  }
  Row row = row_of(std::string(measure.name), std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note =
        "others: " + measure.text(peers) + "; a quota, a hot processor, a neighbour?";
    row.finding.cure = "top";
  }
  rows.push_back(std::move(row));
}

}  // namespace

void compare_speed(const Nodes& nodes, Rows& rows) {
  for (const Measure& measure : kMeasures) compare(measure, nodes, rows);
}

}  // namespace ddprun::doctor
