#include "worker_sdk/elastic/shard_division.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun::elastic {
namespace {

constexpr int kRanks = 4, kShards = 32;

// "8 8 8 8"
std::string counts(const ShardDivision& division, int shards = kShards, int ranks = kRanks) {
  std::string text;
  int next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto mine = division.of(rank, shards);
    CHECK(*mine.begin() == next);
    next = *mine.begin() + static_cast<int>(mine.size());
    for (const int shard : mine) CHECK(division.owner(shard, shards) == rank);
    text += (text.empty() ? "" : " ") + std::to_string(mine.size());
  }
  CHECK(next == shards);
  return text;
}

ShardDivision begun(std::vector<Pace> paces = std::vector<Pace>(kRanks, 0)) {
  ShardDivision division(paces);
  division.use(kShards);
  return division;
}

double time_of_step(const ShardDivision& division, const std::vector<Pace>& paces) {
  double longest = 0;
  for (int rank = 0; rank < static_cast<int>(paces.size()); ++rank) {
    const auto shards = static_cast<double>(division.of(rank, kShards).size());
    longest =
        std::max(longest, shards * static_cast<double>(paces[static_cast<std::size_t>(rank)]));
  }
  return longest;
}

TEST_CASE("Shard division: ranks that are equally fast keep an even share", "[elastic]") {
  ShardDivision division = begun();
  for (int step = 0; step < 100; ++step) division.advance(std::vector<Pace>(kRanks, 1000));
  CHECK(counts(division) == "8 8 8 8");
  CHECK(division.moves() == 0);
}

TEST_CASE("Shard division: a rank at half speed gives one shard a step, and keeps what fits",
          "[elastic]") {
  ShardDivision division = begun();
  const std::vector<Pace> paces = {1000, 1000, 2000, 1000};
  std::string story;
  for (int step = 0; step < 12; ++step) {
    division.advance(paces);
    story += counts(division) + "\n";
  }
  CHECK(story ==
        "8 8 8 8\n8 8 8 8\n8 8 8 8\n9 8 7 8\n9 9 6 8\n9 9 5 9\n9 9 5 9\n9 9 5 9\n9 9 5 9\n9 9 5 9\n"
        "9 9 5 9\n9 9 5 9\n");
  CHECK(division.moves() == 3);
}

TEST_CASE("Shard division: what has been won is what an even division would take longer") {
  ShardDivision division = begun();
  CHECK(division.won() == 0);
  const std::vector<Pace> paces = {100, 100, 100, 200};
  for (int step = 0; step < 20; ++step) division.advance(paces);
  CHECK(counts(division) == "9 9 9 5");
  CHECK(division.won() == 8 * 200 - 5 * 200);
  CHECK(ShardDivision(paces).won() == 0);  // No step has been divided.
}

TEST_CASE("Shard division: no shards are refused, also before the first step", "[elastic]") {
  CHECK_THROWS_AS(ShardDivision(std::vector<Pace>(4)).of(0, 0), Error);
}

TEST_CASE("Shard division: a rank that is much too slow gives several at once, but never all",
          "[elastic]") {
  ShardDivision division = begun();
  for (int step = 0; step < 4; ++step) division.advance(std::vector<Pace>{1000, 9000, 1000, 1000});
  CHECK(counts(division) == "11 1 10 10");
  for (int step = 0; step < 50; ++step) {
    division.advance(std::vector<Pace>{1000, 900'000, 1000, 1000});
  }
  CHECK(counts(division) == "11 1 10 10");
}

TEST_CASE("Shard division: one standstill moves little, and it comes back", "[elastic]") {
  ShardDivision division = begun();
  for (int step = 0; step < 10; ++step) division.advance(std::vector<Pace>(kRanks, 1000));
  division.advance(std::vector<Pace>{1000, 1000, 5'000'000, 1000});
  CHECK(division.of(2, kShards).size() >= 7);
  for (int step = 0; step < 20; ++step) division.advance(std::vector<Pace>(kRanks, 1000));
  CHECK(counts(division) == "8 8 8 8");
}

TEST_CASE("Shard division: noise of 20 % costs less than 1 %", "[elastic]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(800, 1200);
  double followed = 0, even = 0;
  ShardDivision division = begun();
  const ShardDivision fixed = begun();
  for (int step = 0; step < 4000; ++step) {
    std::vector<Pace> paces(kRanks);
    for (Pace& pace : paces) pace = static_cast<Pace>(noise(random));
    followed += time_of_step(division, paces);
    even += time_of_step(fixed, paces);
    division.advance(paces);
  }
  CHECK(followed / even < 1.01);
  CHECK(division.moves() < 100);
}

TEST_CASE("Shard division: with noise a slow rank is still found", "[elastic]") {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> noise(800, 1200);
  ShardDivision division = begun();
  for (int step = 0; step < 400; ++step) {
    std::vector<Pace> paces(kRanks);
    for (Pace& pace : paces) pace = static_cast<Pace>(noise(random));
    paces[1] *= 2;
    division.advance(paces);
  }
  CHECK(time_of_step(division, {1000, 2000, 1000, 1000}) <= 10'000);
}

TEST_CASE("Shard division: a new round goes on with what is known, and new ranks get an even share",
          "[elastic]") {
  CHECK(counts(begun({1000, 1000, 2000, 1000})) == "9 9 5 9");
  CHECK(counts(begun({0, 1000, 1000, 1000})) == "8 8 8 8");
  CHECK(counts(begun({0, 0, 0, 0})) == "8 8 8 8");
  ShardDivision division = begun();
  CHECK(division.pace(0) == 0);
  for (int step = 0; step < 8; ++step) division.advance(std::vector<Pace>{1000, 0, 3000, 1000});
  CHECK(division.pace(0) == 1000);
  CHECK(division.pace(1) == 0);
  CHECK(division.pace(2) == 3000);
}

TEST_CASE("Shard division: another number of shards is divided by what is known", "[elastic]") {
  ShardDivision division({1000, 1000, 2000, 1000});
  CHECK(counts(division, 32) == "8 8 8 8");  // Not used yet.
  division.use(32);
  CHECK(counts(division, 32) == "9 9 5 9");
  CHECK(counts(division, 16) == "4 4 4 4");
  division.use(16);
  CHECK(counts(division, 16) == "5 5 2 4");
  CHECK(counts(division, 32) == "8 8 8 8");
  division.use(4);
  CHECK(counts(division, 4) == "1 1 1 1");
}

TEST_CASE("Shard division: fingerprints are equal on ranks that divide alike only", "[elastic]") {
  ShardDivision a = begun(), b = begun();
  CHECK(a.fingerprint() == b.fingerprint());
  a.advance(std::vector<Pace>{1000, 1000, 1000, 1000});
  CHECK(a.fingerprint() != b.fingerprint());
  b.advance(std::vector<Pace>{1000, 1000, 1000, 1000});
  CHECK(a.fingerprint() == b.fingerprint());
  b.use(16);
  CHECK(a.fingerprint() != b.fingerprint());
}

TEST_CASE("Shard division: a pace is picoseconds per unit of work", "[elastic]") {
  CHECK(pace_of(1'000'000, 8) == 125'000'000);
  CHECK(pace_of(1'000'000, 0) == 0);
  CHECK(pace_of(0, 8) == 0);
  CHECK(pace_of(1, 1e9) == 1);
  CHECK(pace_of(std::int64_t{1} << 62, 1e-9) == kPaceMost);
}

TEST_CASE("Shard division: measures of any size are survived", "[elastic]") {
  ShardDivision division = begun();
  for (int step = 0; step < 100; ++step) {
    division.advance(std::vector<Pace>{kPaceMost, 1, step % 2 == 0 ? 1 : kPaceMost, -5});
    counts(division);
  }
}

}  // namespace
}  // namespace ddprun::elastic
