// The tables of what sync timers count: that they agree with the documents, and what is done to all
// of their counters alike.

#include "common/sync_counts.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace ddprun {
namespace {

// The tests run in the root of the source tree.
std::string page(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::set<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    all.insert(it->str(1));
  }
  return all;
}

template <class Counts>
void each_exported(auto see) {
  for (const SyncCounter& row : Counts::kRows) {
    if (row.is_exported()) see(row);
  }
}

TEST_CASE("Sync counts: docs/operations.md lists every metric with its unit and labels",
          "[sync_counts]") {
  const std::string text = page("docs/operations.md");
  std::set<std::string> metrics;
  const auto listed = [&](const SyncCounter& row, const std::string& label) {
    const std::string metric = std::string("ddprun_sync_") + row.metric;
    metrics.insert(metric);
    const std::size_t at = text.find("`" + metric + "`");
    CAPTURE(metric, row.name);
    REQUIRE(at != std::string::npos);
    const std::string line = text.substr(at, text.find('\n', at) - at);
    CHECK(line.find(row.is_rate() ? "| gauge, `run`" : "| counter, `run`") != std::string::npos);
    CHECK(line.find(label) != std::string::npos);
    if (*row.phase == '\0') return;
    CHECK(line.find("`phase`") != std::string::npos);
    CHECK(line.find("`" + std::string(row.phase) + "`") != std::string::npos);
  };
  each_exported<SyncCounts>([&](const SyncCounter& row) { listed(row, "`run`"); });
  each_exported<LateCounts>([&](const SyncCounter& row) { listed(row, "`run`, `rank`"); });
  CHECK(matches(text, "`(ddprun_sync_[a-z_]+)`") == metrics);
}

TEST_CASE("Sync counts: docs/protocol.md lists every counter of a heartbeat", "[sync_counts]") {
  const std::string text = page("docs/protocol.md");
  const auto fields = [&](const std::string& of) {
    std::smatch match;
    REQUIRE(std::regex_search(text, match, std::regex("`" + of + "`: ([^.]*)\\.")));
    return matches(match.str(1), "`([a-z_]+)`");
  };
  std::set<std::string> sync{"late"}, late{"rank"};
  each_exported<SyncCounts>([&](const SyncCounter& row) { sync.insert(row.name); });
  each_exported<LateCounts>([&](const SyncCounter& row) { late.insert(row.name); });
  CHECK(fields("sync") == sync);
  CHECK(fields("late") == late);
}

template <class Counts>
void check_table() {
  std::set<std::string> names, series;
  for (const SyncCounter& row : Counts::kRows) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    const std::string metric = row.metric;
    CHECK((metric.empty() || series.insert(metric + row.phase).second));
    CHECK(metric.empty() == (*row.help == '\0'));
    const bool is_time = row.unit == SyncUnit::kNanoseconds;
    CHECK(is_time == std::string(row.name).ends_with("_ns"));
    if (row.is_exported()) CHECK(is_time == metric.ends_with("seconds_total"));
  }
}

TEST_CASE("Sync counts: names and metrics are unique, and end with their unit", "[sync_counts]") {
  check_table<SyncCounts>();
  check_table<LateCounts>();
}

TEST_CASE("Sync counts: sums add up, of a rate the newest counts", "[sync_counts]") {
  SyncCounts sum{{"steps", 2}, {"busbw", 50}};
  sum.add({{"steps", 3}, {"comm_ns", 7}});
  CHECK(sum == SyncCounts{{"steps", 5}, {"comm_ns", 7}, {"busbw", 50}});
  sum.add({{"busbw", 40}});
  CHECK(sum["busbw"] == 40);
  const SyncCounts later{{"steps", 9}, {"comm_ns", 6}, {"busbw", 40}};
  CHECK(later.since(sum) == SyncCounts{{"steps", 4}, {"busbw", 40}});
  sum.add(later, 8);
  CHECK(sum == SyncCounts{{"steps", 8}, {"comm_ns", 8}, {"busbw", 8}});
  sum.add({{"steps", ~std::uint64_t{0}}});
  CHECK(sum["steps"] == ~std::uint64_t{0});  // It does not begin again at 0.
}

}  // namespace
}  // namespace ddprun
