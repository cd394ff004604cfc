#include "worker_sdk/elastic/audit.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

namespace ddprun::elastic {
namespace {

using Hosts = std::vector<int>;

// Contiguous ranges, as many shards as `counts` says of each rank.
std::vector<int> owners_of(const std::vector<int>& counts) {
  std::vector<int> owners;
  for (int rank = 0; rank < static_cast<int>(counts.size()); ++rank) {
    owners.insert(owners.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]),
                  rank);
  }
  return owners;
}

struct Audited {
  std::vector<int> by_owner, by_auditor;
  std::set<int> shards;
};

Audited audited(std::int64_t per_million, std::int64_t step, const std::vector<int>& owners,
                const Hosts& hosts) {
  Audited result{std::vector<int>(hosts.size()), std::vector<int>(hosts.size()), {}};
  const std::vector<int> auditors = auditors_of(per_million, step, owners, hosts);
  REQUIRE(auditors.size() == owners.size());
  for (std::size_t shard = 0; shard < owners.size(); ++shard) {
    if (auditors[shard] < 0) continue;
    result.shards.insert(static_cast<int>(shard));
    ++result.by_owner[static_cast<std::size_t>(owners[shard])];
    ++result.by_auditor[static_cast<std::size_t>(auditors[shard])];
    CHECK(auditors[shard] != owners[shard]);
  }
  return result;
}

TEST_CASE("Audit: as many shards are audited as were asked for, others in each step", "[elastic]") {
  for (const std::vector<int>& counts : {std::vector{8, 8, 8, 8}, std::vector{3, 12, 8, 9}}) {
    const std::vector<int> owners = owners_of(counts);
    for (const std::int64_t per_million : {0, 20'000, 500'000, 1'000'000}) {
      std::vector<int> times(owners.size());
      std::set<std::set<int>> patterns;
      for (std::int64_t step = 0; step < 4000; ++step) {
        const std::set<int> shards = audited(per_million, step, owners, {0, 0, 1, 1}).shards;
        for (const int shard : shards) ++times[static_cast<std::size_t>(shard)];
        patterns.insert(shards);
      }
      for (const int of_shard : times) {
        CHECK(of_shard / 4000.0 ==
              Approx(static_cast<double>(per_million) / kMillion).margin(0.03));
      }
      if (per_million == 20'000) CHECK(patterns.size() > 100);
    }
  }
}

TEST_CASE("Audit: a step that is audited costs each rank the same", "[elastic]") {
  const std::vector<Hosts> all = {
      {0, 1}, {0, 0, 1, 1}, {0, 0, 1, 1, 2}, {0, 1, 0, 1, 2, 2}, {0, 0}};
  for (const Hosts& hosts : all) {
    const std::vector<int> owners = owners_of(std::vector<int>(hosts.size(), 8));
    int steps = 0;
    for (std::int64_t step = 0; step < 1000; ++step) {
      const Audited found = audited(10'000, step, owners, hosts);
      if (found.shards.empty()) continue;
      ++steps;
      CHECK(found.by_owner == std::vector<int>(hosts.size(), 1));
      CHECK(found.by_auditor == std::vector<int>(hosts.size(), 1));
    }
    CHECK(steps > 40);  // 80 in the mean.
    CHECK(steps < 130);
    CHECK(audited(375'000, 7, owners, hosts).by_auditor == std::vector<int>(hosts.size(), 3));
    // As at the start of a round.
    const std::vector<int> auditors = auditors_of(1, 7, owners, hosts, 1);
    CHECK(std::ssize(hosts) ==
          std::count_if(auditors.begin(), auditors.end(), [](int rank) { return rank >= 0; }));
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
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 2, 2, 1, 0}, Hosts{0, 0, 0, 1}}) {
    const std::vector<int> owners = owners_of(std::vector<int>(hosts.size(), 4));
    std::vector<std::set<int>> seen(hosts.size());
    for (std::int64_t step = 0; step < 300; ++step) {
      const std::vector<int> auditors = auditors_of(250'000, step, owners, hosts);
      for (std::size_t shard = 0; shard < owners.size(); ++shard) {
        if (auditors[shard] < 0) continue;
        const auto owner = static_cast<std::size_t>(owners[shard]);
        CHECK(hosts[owner] != hosts[static_cast<std::size_t>(auditors[shard])]);
        seen[owner].insert(auditors[shard]);
      }
    }
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      CHECK(std::ssize(seen[rank]) == std::count_if(hosts.begin(), hosts.end(),
                                                    [&](int host) { return host != hosts[rank]; }));
    }
  }
  CHECK(auditors_of(kMillion, 5, std::vector{0, 0}, Hosts{0}) == std::vector{-1, -1});
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
  CHECK(discrepancy_of(3, 99, true) + discrepancy_of(3, 99, false) == 0);
  CHECK(discrepancy_of(3, 99, true) + discrepancy_of(3, 98, false) != 0);
  // Two shards whose results are exchanged are two that are wrong.
  CHECK(discrepancy_of(3, 99, true) + discrepancy_of(3, 98, false) + discrepancy_of(4, 98, true) +
            discrepancy_of(4, 99, false) !=
        0);
  const auto sum = [](const std::vector<std::uint64_t>& hashes) {
    std::uint64_t discrepancy = 0;
    const int ranks = static_cast<int>(hashes.size());
    for (int r = 0; r < ranks; ++r) {
      discrepancy += discrepancy_of_state(r, ranks, hashes[static_cast<std::size_t>(r)]);
    }
    return discrepancy;
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
