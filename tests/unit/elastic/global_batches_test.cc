#include "ddprun/elastic/global_batches.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using Indices = std::vector<std::int64_t>;

Indices order(std::int64_t n, std::uint64_t key) {
  Indices all;
  for (std::int64_t place = 0; place < n; ++place) all.push_back(permuted(place, n, key));
  return all;
}

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices counting(std::int64_t n) {
  Indices all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(i);
  return all;
}

TEST_CASE("Permutation: it is one, of any number of elements", "[elastic]") {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 5000}) {
    for (const std::uint64_t key : {0ULL, 1ULL, ~0ULL, 0x1234'5678'9abc'def0ULL}) {
      INFO(n << ", key " << key);
      CHECK(sorted(order(n, key)) == counting(n));
    }
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::set<std::int64_t> seen;
  for (std::int64_t place = 0; place < 1000; ++place) {
    const std::int64_t to = permuted(kMost - 1 - place, kMost, 9);
    CHECK((to >= 0 && to < kMost));
    seen.insert(to);
  }
  CHECK(seen.size() == 1000);
}

double chi_squared(const std::map<Indices, int>& counts, std::size_t classes, double each) {
  double sum = static_cast<double>(classes - counts.size()) * each;
  for (const auto& [what, count] : counts) sum += (count - each) * (count - each) / each;
  return sum;
}

TEST_CASE("Permutation: all orders are equally frequent", "[elastic]") {
  std::map<Indices, int> of_four, first_of_hundred;
  for (std::uint64_t key = 0; key < 24'000; ++key) ++of_four[order(4, key * 0x9E3779B97F4A7C15)];
  for (std::uint64_t key = 0; key < 100'000; ++key) {
    ++first_of_hundred[{permuted(0, 100, key * 0x9E3779B97F4A7C15)}];
  }
  CHECK(chi_squared(of_four, 24, 1000) < 55);             // 23 degrees of freedom.
  CHECK(chi_squared(first_of_hundred, 100, 1000) < 155);  // 99.
}

// The samples of one epoch of one set, in the order of steps.
Indices epoch_of(const GlobalBatches& batches, std::int64_t epoch, std::int64_t steps,
                 int set = 0) {
  Indices indices;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const Sample& sample : batches.batch(step)) {
      if (sample.epoch == epoch && sample.set == set) indices.push_back(sample.index);
    }
  }
  return indices;
}

TEST_CASE("Global batches: each index is in exactly one step of each epoch", "[elastic]") {
  for (const std::int64_t length : {1, 63, 64, 65, 1003}) {
    for (const LastBatch last : {LastBatch::smaller, LastBatch::continues}) {
      const GlobalBatches batches(
          {.sets = {{.length = length}}, .global_batch = 64, .shards = 7, .seed = 3, .last = last});
      for (const std::int64_t epoch : {0, 1, 4}) {
        INFO(length << ", epoch " << epoch);
        const std::int64_t steps = (epoch + 1) * batches.steps_per_epoch() + 1;
        CHECK(sorted(epoch_of(batches, epoch, steps)) == counting(length));
      }
    }
  }
}

TEST_CASE("Global batches: the last of an epoch is smaller, dropped or continued", "[elastic]") {
  GlobalBatchOptions options{
      .sets = {{.length = 10}}, .global_batch = 4, .last = LastBatch::smaller};
  const GlobalBatches smaller(options);
  CHECK(smaller.steps_per_epoch() == 3);
  CHECK(smaller.batch(2).size() == 2);
  CHECK(smaller.batch(3).front().epoch == 1);

  options.last = LastBatch::dropped;
  const GlobalBatches dropped(options);
  CHECK(dropped.steps_per_epoch() == 2);
  CHECK(dropped.batch(2).front().epoch == 1);
  const Indices kept = epoch_of(dropped, 0, 2);
  CHECK(std::set<std::int64_t>(kept.begin(), kept.end()).size() == 8);

  options.last = LastBatch::continues;
  const GlobalBatches continues(options);
  CHECK(continues.steps_per_epoch() == 3);
  const auto third = continues.batch(2);
  CHECK(third.size() == 4);
  CHECK((third[1].epoch == 0 && third[2].epoch == 1));
}

TEST_CASE("Global batches: several sets keep their weights, and their own epochs", "[elastic]") {
  const GlobalBatches batches(
      {.sets = {{.length = 100, .per_batch = 6}, {.length = 7, .per_batch = 2}},
       .global_batch = 8,
       .shards = 2,
       .seed = 5});
  for (std::int64_t step = 0; step < 50; ++step) {
    const auto batch = batches.batch(step);
    CHECK(batch.size() == 8);
    CHECK(std::count_if(batch.begin(), batch.end(), [](const Sample& s) { return s.set == 1; }) ==
          2);
  }
  for (const std::int64_t epoch : {0, 1, 2}) {
    CHECK(sorted(epoch_of(batches, epoch, 60, 0)) == counting(100));
    CHECK(sorted(epoch_of(batches, epoch, 60, 1)) == counting(7));
  }
  CHECK_THROWS_AS(batches.steps_per_epoch(), Error);
}

bool comes_before(const Sample& a, const Sample& b) {
  return std::tie(a.set, a.epoch, a.index) < std::tie(b.set, b.epoch, b.index);
}

// What all ranks read in a step.
std::vector<Sample> read_by(const GlobalBatches& batches, std::int64_t step, int world_size) {
  std::vector<Sample> all;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const int shard : shards_of(rank, world_size, batches.shards())) {
      const auto samples = batches.shard(step, shard);
      all.insert(all.end(), samples.begin(), samples.end());
    }
  }
  std::sort(all.begin(), all.end(), comes_before);
  return all;
}

TEST_CASE("Global batches: a batch is the same for every number of ranks", "[elastic]") {
  const GlobalBatches batches(
      {.sets = {{.length = 1000}}, .global_batch = 96, .shards = 8, .seed = 1});
  for (const std::int64_t step : {0, 5, 10, 1'000'000}) {
    auto whole = batches.batch(step);
    std::sort(whole.begin(), whole.end(), comes_before);
    for (int world_size = 1; world_size <= 8; ++world_size) {
      CHECK(read_by(batches, step, world_size) == whole);
    }
  }
}

TEST_CASE("Global batches: shards of a step differ by one sample at most", "[elastic]") {
  const GlobalBatches batches({.sets = {{.length = 100}}, .global_batch = 30, .shards = 8});
  for (std::int64_t step = 0; step < 8; ++step) {
    std::set<std::size_t> sizes;
    for (int shard = 0; shard < 8; ++shard) {
      const auto size = batches.shard(step, shard).size();
      CHECK(batches.shard_size(step, shard) == static_cast<std::int64_t>(size));
      sizes.insert(size);
    }
    CHECK(*sizes.rbegin() - *sizes.begin() <= 1);
  }
}

TEST_CASE("Global batches: shards are dealt to ranks evenly, each once", "[elastic]") {
  for (int shards = 1; shards <= 20; ++shards) {
    for (int world_size = 1; world_size <= shards; ++world_size) {
      std::vector<int> owned;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto mine = shards_of(rank, world_size, shards);
        CHECK(static_cast<int>(mine.size()) >= shards / world_size);
        CHECK(static_cast<int>(mine.size()) <= shards / world_size + 1);
        owned.insert(owned.end(), mine.begin(), mine.end());
      }
      CHECK(static_cast<int>(owned.size()) == shards);
      CHECK(std::is_sorted(owned.begin(), owned.end()));
    }
  }
}

TEST_CASE("Global batches: epochs, sets and seeds have orders of their own", "[elastic]") {
  GlobalBatchOptions options{
      .sets = {{.length = 50, .per_batch = 5}, {.length = 50, .per_batch = 5}}, .global_batch = 10};
  std::set<Indices> orders;
  for (const std::uint64_t seed : {0, 1}) {
    options.seed = seed;
    const GlobalBatches batches(options);
    for (const int set : {0, 1}) {
      for (const std::int64_t epoch : {0, 1}) orders.insert(epoch_of(batches, epoch, 20, set));
    }
  }
  CHECK(orders.size() == 8);
  options.shuffle = false;
  CHECK(epoch_of(GlobalBatches(options), 1, 20) == counting(50));
}

// A checkpoint names a step, and a later version must find the same samples there.
TEST_CASE("Global batches: the order is part of what a checkpoint means", "[elastic]") {
  const GlobalBatches batches({.sets = {{.length = 1000}}, .global_batch = 6, .seed = 42});
  Indices indices;
  for (const Sample& sample : batches.batch(400)) indices.push_back(sample.index);
  CHECK(indices == Indices{139, 300, 285, 632, 774, 572});
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::bad_argument ? error.text() : "another kind";
  }
  return "none";
}

TEST_CASE("Global batches: what makes no sense is refused", "[elastic]") {
  const auto with = [](GlobalBatchOptions options) {
    return refusal([&] { GlobalBatches batches(std::move(options)); });
  };
  CHECK(with({.sets = {}, .global_batch = 4}) == "there is no data set");
  CHECK(with({.sets = {{.length = 0}}, .global_batch = 4}) == "data set 0 has 0 samples");
  CHECK(with({.sets = {{.length = 9}}, .global_batch = 0}) == "global_batch is 0");
  CHECK(with({.sets = {{.length = 9}}, .global_batch = 4, .shards = 0}) == "shards is 0");
  CHECK(with({.sets = {{.length = 9}, {.length = 9, .per_batch = 4}}, .global_batch = 4}) ==
        "data set 0 needs a per_batch");
  CHECK(with({.sets = {{.length = 9, .per_batch = 1}, {.length = 9, .per_batch = 4}},
              .global_batch = 4}) == "per_batch of all data sets is 5 together, global_batch 4");
  CHECK(with({.sets = {{.length = 3}}, .global_batch = 4, .last = LastBatch::dropped}) ==
        "no batch is whole: the data set has 3 samples, global_batch is 4");
  const GlobalBatches batches({.sets = {{.length = 9}}, .global_batch = 4, .shards = 2});
  CHECK(refusal([&] { (void)batches.batch(-1); }) == "step is -1");
  CHECK(refusal([&] { (void)batches.shard(0, 2); }) == "shard 2 is not within 0 .. 1");
  CHECK(refusal([] { (void)shards_of(0, 3, 2); }) == "2 shards are too few for 3 ranks");
  CHECK(refusal([] { (void)shards_of(3, 3, 8); }) == "rank 3 of 3");
}

}  // namespace
}  // namespace ddprun
