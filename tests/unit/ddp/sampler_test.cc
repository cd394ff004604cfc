// DistributedSampler against what PyTorch's answered (tests/golden/sampler.txt).

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ddprun/distributed_sampler.h"
#include "ddprun/error.h"
#include "tests/support/ranks.h"

namespace {

using ddprun::DistributedSampler;

std::string fnv1a(const std::vector<std::int64_t>& indices) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const std::int64_t index : indices) {
    for (int byte = 0; byte < 8; ++byte) {
      h = (h ^ (static_cast<std::uint64_t>(index) >> (8 * byte) & 0xff)) * 0x100000001b3U;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

std::string summary(const std::vector<std::int64_t>& indices) {
  std::string text = fnv1a(indices);
  for (std::size_t i = 0; i < indices.size() && i < 8; ++i) {
    text += ' ' + std::to_string(indices[i]);
  }
  return text;
}

std::string rest_of(std::istringstream& in) {
  std::string rest;
  std::getline(in >> std::ws, rest);
  while (!rest.empty() && rest.back() == ' ') rest.pop_back();
  return rest;
}

std::string sampler_answer(std::istringstream& in) {
  ddprun::SamplerShare share;
  ddprun::SamplerOptions o;
  std::int64_t epoch = 0;
  std::int64_t count = 0;
  in >> share.length >> share.world_size >> share.rank >> o.seed >> epoch >> o.shuffle >>
      o.drop_last >> count;
  DistributedSampler sampler(share, o);
  sampler.set_epoch(epoch);
  CHECK(sampler.num_samples() == count);
  return summary(sampler.indices());
}

std::string randperm_answer(std::istringstream& in) {
  std::int64_t n = 0;
  std::uint64_t seed = 0;
  in >> n >> seed;
  return summary(ddprun::random_permutation(n, seed));
}

}  // namespace

TEST_CASE("Sampler: every answer is PyTorch's") {
  std::ifstream file("tests/golden/sampler.txt");
  REQUIRE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    const std::string answer = kind == "sampler" ? sampler_answer(in) : randperm_answer(in);
    CHECK(answer == rest_of(in));
    ++cases;
  }
  CHECK(cases > 1200);
}

TEST_CASE("Sampler: without drop_last every sample is read, by ranks that read equally many") {
  std::multiset<std::int64_t> read;
  for (int rank = 0; rank < 4; ++rank) {
    const auto mine = DistributedSampler({.length = 103, .world_size = 4, .rank = rank}).indices();
    CHECK(mine.size() == 26);
    read.insert(mine.begin(), mine.end());
  }
  CHECK(std::set<std::int64_t>(read.begin(), read.end()).size() == 103);
  CHECK(read.size() == 104);
}

TEST_CASE("Sampler: a group's rank reads its own share") {
  const auto errors = ddprun::test::Ranks{.world_size = 3}.run([](ddprun::ProcessGroup& group) {
    const auto mine = DistributedSampler(group, 103, {.seed = 7}).indices();
    const auto same =
        DistributedSampler({.length = 103, .world_size = 3, .rank = group.rank()}, {.seed = 7});
    if (mine != same.indices()) throw ddprun::Error(ddprun::ErrorKind::mismatch, {}, "another");
  });
  CHECK(ddprun::test::outcome(errors) == "all well");
}

TEST_CASE("Sampler: with drop_last no sample is read twice") {
  std::set<std::int64_t> read;
  for (int rank = 0; rank < 4; ++rank) {
    const auto mine =
        DistributedSampler({.length = 103, .world_size = 4, .rank = rank}, {.drop_last = true})
            .indices();
    CHECK(mine.size() == 25);
    read.insert(mine.begin(), mine.end());
  }
  CHECK(read.size() == 100);
}

TEST_CASE("Sampler: fewer samples than ranks repeat until every rank has one") {
  for (int rank = 0; rank < 5; ++rank) {
    const auto mine =
        DistributedSampler({.length = 2, .world_size = 5, .rank = rank}, {.shuffle = false})
            .indices();
    CHECK(mine == std::vector<std::int64_t>{rank % 2});
  }
}

TEST_CASE("Sampler: the epoch changes the order, its return brings the order back") {
  DistributedSampler sampler({.length = 1000});
  const auto first = sampler.indices();
  sampler.set_epoch(1);
  CHECK(sampler.indices() != first);
  sampler.set_epoch(0);
  CHECK(sampler.indices() == first);
}

TEST_CASE("Sampler: what cannot be is refused, and the text says what") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(DistributedSampler({.length = -1}), Contains("-1 samples"));
  CHECK_THROWS_WITH(DistributedSampler({.length = 8, .world_size = 0}),
                    Contains("world_size is 0"));
  CHECK_THROWS_WITH(DistributedSampler({.length = 8, .world_size = 2, .rank = 2}),
                    Contains("rank 2 is not within 0 .. 1"));
  CHECK_THROWS_AS(ddprun::random_permutation(-1, 0), ddprun::Error);
}

namespace {

DistributedSampler of_world(int world_size, int rank, bool drop_last = false) {
  return DistributedSampler({.length = 103, .world_size = world_size, .rank = rank},
                            {.seed = 3, .drop_last = drop_last});
}

}  // namespace

TEST_CASE("Sampler: what is left of an epoch is what indices() would have given") {
  for (const bool drop_last : {false, true}) {
    auto sampler = of_world(4, 2, drop_last);
    sampler.set_epoch(5);
    const auto all = sampler.indices();
    sampler.advance(7);
    CHECK(sampler.state().consumed == 28);
    sampler.set_epoch(5);  // As a loop does that starts again from the state.
    CHECK(sampler.indices() == std::vector<std::int64_t>(all.begin() + 7, all.end()));
    sampler.advance(sampler.remaining());
    CHECK(sampler.indices().empty());
    CHECK_THROWS_AS(sampler.advance(1), ddprun::Error);
    sampler.set_epoch(6);
    CHECK(sampler.remaining() == sampler.num_samples());
  }
}

TEST_CASE("Sampler: another world size reads the rest of an epoch, each sample once") {
  for (const int after : {1, 2, 3, 7, 13}) {
    for (const std::int64_t steps : {0, 1, 11, 25}) {
      std::multiset<std::int64_t> read;
      ddprun::SamplerState state;
      for (int rank = 0; rank < 4; ++rank) {
        auto sampler = of_world(4, rank);
        sampler.set_epoch(2);
        const auto mine = sampler.indices();
        read.insert(mine.begin(), mine.begin() + steps);
        sampler.advance(steps);
        state = sampler.state();
      }
      std::size_t each = 0;
      for (int rank = 0; rank < after; ++rank) {
        auto sampler = of_world(after, rank);
        sampler.load(state);
        CHECK(sampler.state().epoch == 2);
        const auto mine = sampler.indices();
        if (rank == 0) each = mine.size();
        CHECK(mine.size() == each);
        read.insert(mine.begin(), mine.end());
      }
      CHECK(std::set<std::int64_t>(read.begin(), read.end()).size() == 103);
      CHECK(read.size() < 103 + static_cast<std::size_t>(after));  // But for the padding.
    }
  }
}

TEST_CASE("Sampler: a state past the end of the epoch leaves nothing, a negative one is refused") {
  auto sampler = of_world(2, 0);
  sampler.load({.epoch = 1, .consumed = 104});
  CHECK(sampler.indices().empty());
  CHECK_THROWS_AS(sampler.load({.epoch = 0, .consumed = -1}), ddprun::Error);
}

TEST_CASE("Batches: as BatchSampler groups them") {
  const std::vector<std::int64_t> seven{6, 5, 4, 3, 2, 1, 0};
  using Batches = std::vector<std::vector<std::int64_t>>;
  CHECK(ddprun::batches(seven, 3) == Batches{{6, 5, 4}, {3, 2, 1}, {0}});
  CHECK(ddprun::batches(seven, 3, true) == Batches{{6, 5, 4}, {3, 2, 1}});
  CHECK(ddprun::batches(seven, 7, true) == Batches{seven});
  CHECK(ddprun::batches(seven, 8, true).empty());
  CHECK(ddprun::batches({}, 8).empty());
  CHECK_THROWS_AS(ddprun::batches(seven, 0), ddprun::Error);
}
