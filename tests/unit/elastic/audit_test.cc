#include "worker_sdk/elastic/audit.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

namespace ddprun::elastic {
namespace {

using Hosts = std::vector<int>;

TEST_CASE("Audit: as many shards are chosen as were asked for, others in each step", "[elastic]") {
  for (const std::int64_t per_million : {0, 20'000, 500'000, 1'000'000}) {
    int chosen = 0;
    std::set<std::set<int>> patterns;
    for (std::int64_t step = 0; step < 1000; ++step) {
      std::set<int> pattern;
      for (int shard = 0; shard < 32; ++shard) {
        if (is_chosen(per_million, step, shard)) pattern.insert(shard);
      }
      chosen += static_cast<int>(pattern.size());
      patterns.insert(pattern);
    }
    const double share = chosen / 32'000.0;
    CHECK(share == Approx(static_cast<double>(per_million) / kMillion).margin(0.01));
    if (per_million == 20'000) CHECK(patterns.size() > 30);
  }
}

TEST_CASE("Audit: a percentage is read, or refused", "[elastic]") {
  CHECK(per_million_of("1") == 10'000);
  CHECK(per_million_of("0.5%") == 5'000);
  CHECK(per_million_of("100") == kMillion);
  CHECK(per_million_of("0") == 0);
  for (const char* wrong : {"", "%", "-1", "101", "1%%", "one", "1 ", "nan", "inf", "1e1"}) {
    INFO(wrong);
    CHECK(per_million_of(wrong) == -1);
  }
}

TEST_CASE("Audit: the second rank is on another host if there is one, and all take turns",
          "[elastic]") {
  const Hosts two = {0, 0, 1, 1}, one = {0, 0, 0};
  std::set<int> seen;
  for (std::int64_t step = 0; step < 200; ++step) {
    const int auditor = auditor_of(two, step, 3, 1);
    CHECK(two[static_cast<std::size_t>(auditor)] == 1);
    seen.insert(auditor);
    CHECK(auditor_of(one, step, 0, 2) != 2);
  }
  CHECK(seen == std::set<int>{2, 3});
  CHECK(auditor_of(Hosts{0}, 5, 0, 0) == -1);
}

TEST_CASE("Audit: a third host votes; without one the two compute again", "[elastic]") {
  const Dispute dispute{.shard = 7, .owner = 0, .auditor = 2};
  CHECK(voter_of(Hosts{0, 0, 1, 1}, dispute) == -1);
  CHECK(voter_of(Hosts{0, 0, 1, 1, 2}, dispute) == 4);
  CHECK(voter_of(Hosts{0, 0, 0}, dispute) == 1);
  CHECK(voter_of(Hosts{0, 1}, {.owner = 0, .auditor = 1}) == -1);
  CHECK(voter_of(Hosts{0, 0}, {.owner = 0, .auditor = 1}) == -1);
}

TEST_CASE("Audit: doubts add up to 0 where results are equal, and only there", "[elastic]") {
  CHECK(doubt_of(3, 99, true) + doubt_of(3, 99, false) == 0);
  CHECK(doubt_of(3, 99, true) + doubt_of(3, 98, false) != 0);
  // Two shards whose results are exchanged are two that are wrong.
  CHECK(doubt_of(3, 99, true) + doubt_of(3, 98, false) + doubt_of(4, 98, true) +
            doubt_of(4, 99, false) !=
        0);
  const auto sum = [](const std::vector<std::uint64_t>& hashes) {
    std::uint64_t doubt = 0;
    const int ranks = static_cast<int>(hashes.size());
    for (int r = 0; r < ranks; ++r) {
      doubt += doubt_of_state(r, ranks, hashes[static_cast<std::size_t>(r)]);
    }
    return doubt;
  };
  CHECK(sum({5, 5, 5, 5}) == 0);
  CHECK(sum({5}) == 0);
  CHECK(sum({5, 5, 6, 5}) != 0);
  CHECK(sum({6, 5, 5, 5}) != 0);
  CHECK(sum({6, 6, 5, 5}) != 0);
}

TEST_CASE("Audit: the vote names the one that differs from it, whatever they find later",
          "[elastic]") {
  const Dispute first{.shard = 1, .owner = 4, .auditor = 6, .owners = 10, .auditors = 20};
  Dispute second = first;
  CHECK(judge(first, second, true, 20) == Judged{Finding::kCulprit, 4});
  CHECK(judge(first, second, true, 10) == Judged{Finding::kCulprit, 6});
  CHECK(judge(first, second, true, 30) == Judged{Finding::kNoTwoAgree, -1});
  second.owners = second.auditors = 20;  // It was a passing fault of the owner.
  CHECK(judge(first, second, true, 20) == Judged{Finding::kCulprit, 4});
  CHECK(judge(first, second, false, 0) == Judged{Finding::kPassed, -1});
  CHECK(judge(first, first, false, 0) == Judged{Finding::kRecurs, -1});
}

}  // namespace
}  // namespace ddprun::elastic
