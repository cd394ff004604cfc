// Clocks, and who reaches whom how fast.

#include <algorithm>
#include <cmath>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/compare.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
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

}  // namespace ddprun::doctor
