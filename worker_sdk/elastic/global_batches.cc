#include "ddprun/elastic/global_batches.h"

#include <algorithm>
#include <bit>
#include <string>

#include "common/assert.h"
#include "ddprun/elastic/random_stream.h"
#include "ddprun/error.h"
#include "worker_sdk/elastic/mix.h"

namespace ddprun {
namespace {

constexpr std::int64_t kLengthMax = std::int64_t{1} << 62;
// Rounds of a Feistel network, whose functions mix well: three would suffice for a random order,
// see M. Luby and C. Rackoff, "How to construct pseudorandom permutations" (SIAM J. Comput. 1988).
// Small sets have few bits per half, so more.
constexpr int kFeistelRounds = 8;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = "GlobalBatches"}, text);
}

void check(const GlobalBatchOptions& o) {
  if (o.sets.empty()) refuse("there is no data set");
  if (o.global_batch < 1) refuse("global_batch is " + std::to_string(o.global_batch));
  if (o.shards < 1) refuse("shards is " + std::to_string(o.shards));
  std::int64_t weights = 0;
  for (const DataSet& set : o.sets) {
    const std::string name = "data set " + std::to_string(&set - o.sets.data());
    if (set.length < 1 || set.length > kLengthMax) {
      refuse(name + " has " + std::to_string(set.length) + " samples");
    }
    if (set.per_batch < 0 || set.per_batch > o.global_batch) {
      refuse(name + ": per_batch is " + std::to_string(set.per_batch));
    }
    if (set.per_batch == 0 && o.sets.size() > 1) refuse(name + " needs a per_batch");
    weights += set.per_batch;
  }
  const bool alone = o.sets.size() == 1 && weights == 0;
  if (!alone && weights != o.global_batch) {
    refuse("per_batch of all data sets is " + std::to_string(weights) + " together, global_batch " +
           std::to_string(o.global_batch));
  }
  if (o.last == LastBatch::dropped && o.sets.front().length < o.global_batch &&
      o.sets.size() == 1) {
    refuse("no batch is whole: the data set has " + std::to_string(o.sets.front().length) +
           " samples, global_batch is " + std::to_string(o.global_batch));
  }
}

// A key per epoch and set; the keys are far from each other.
std::uint64_t key_of(std::uint64_t seed, int set, std::int64_t epoch) {
  const auto e = static_cast<std::uint64_t>(epoch);
  const auto block =
      philox4x32({static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(e >> 32),
                  static_cast<std::uint32_t>(set), 0x6261'7463},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{block[0]} << 32 | block[1];
}

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

// A Feistel network over the smallest even number of bits that holds n; a result that is out of
// range is permuted again until it is in range.
std::int64_t permuted(std::int64_t place, std::int64_t n, std::uint64_t key) noexcept {
  DDPRUN_ASSERT(place >= 0 && place < n && n <= kLengthMax);
  const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1))));
  const int half = (bits + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(place);
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const auto turn = static_cast<std::uint64_t>(round) << 56;
      const std::uint64_t mixed = worker_sdk::mix64(worker_sdk::mix64(key ^ turn) ^ right);
      left ^= mixed & mask;
      std::swap(left, right);
    }
    x = left << half | right;
  } while (x >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(x);
}

std::ranges::iota_view<int, int> shards_of(int rank, int world_size, int shards) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    refuse("rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  }
  if (shards < world_size) {
    refuse(std::to_string(shards) + " shards are too few for " + std::to_string(world_size) +
           " ranks");
  }
  const int each = shards / world_size, more = shards % world_size;
  const int first = rank * each + std::min(rank, more);
  return {first, first + each + (rank < more ? 1 : 0)};
}

GlobalBatches::GlobalBatches(GlobalBatchOptions options) : options_(std::move(options)) {
  check(options_);
  if (options_.sets.size() > 1) options_.last = LastBatch::continues;
  if (options_.sets.front().per_batch == 0) options_.sets.front().per_batch = options_.global_batch;
}

std::int64_t GlobalBatches::steps_per_epoch() const {
  if (options_.sets.size() > 1) refuse("several data sets have no common epoch");
  const std::int64_t length = options_.sets.front().length, batch = options_.global_batch;
  return options_.last == LastBatch::dropped ? length / batch : divided_up(length, batch);
}

std::int64_t GlobalBatches::batch_size(std::int64_t step) const {
  if (step < 0) refuse("step is " + std::to_string(step));
  if (options_.last != LastBatch::smaller) return options_.global_batch;
  const std::int64_t done = step % steps_per_epoch() * options_.global_batch;
  return std::min(options_.global_batch, options_.sets.front().length - done);
}

Sample GlobalBatches::sample(std::int64_t step, std::int64_t place) const {
  Sample found;
  while (place >= options_.sets[static_cast<std::size_t>(found.set)].per_batch) {
    place -= options_.sets[static_cast<std::size_t>(found.set++)].per_batch;
  }
  const DataSet& set = options_.sets[static_cast<std::size_t>(found.set)];
  std::int64_t at = 0;
  if (options_.last == LastBatch::continues) {
    // step * per_batch may be more than 64 bits hold.
    const auto position = static_cast<__int128>(step) * set.per_batch + place;
    found.epoch = static_cast<std::int64_t>(position / set.length);
    at = static_cast<std::int64_t>(position % set.length);
  } else {
    found.epoch = step / steps_per_epoch();
    at = step % steps_per_epoch() * options_.global_batch + place;
  }
  found.index = options_.shuffle
                    ? permuted(at, set.length, key_of(options_.seed, found.set, found.epoch))
                    : at;
  return found;
}

std::vector<Sample> GlobalBatches::batch(std::int64_t step) const { return dealt(step, 0, 1); }

std::vector<Sample> GlobalBatches::shard(std::int64_t step, int shard) const {
  require_shard(shard);
  return dealt(step, shard, options_.shards);
}

std::int64_t GlobalBatches::shard_size(std::int64_t step, int shard) const {
  require_shard(shard);
  const std::int64_t size = batch_size(step);
  return shard < size ? (size - shard - 1) / options_.shards + 1 : 0;
}

void GlobalBatches::require_shard(int shard) const {
  if (shard >= 0 && shard < options_.shards) return;
  refuse("shard " + std::to_string(shard) + " is not within 0 .. " +
         std::to_string(options_.shards - 1));
}

// Deals the samples out like cards, so that each shard has its part of each data set.
std::vector<Sample> GlobalBatches::dealt(std::int64_t step, int shard, int shards) const {
  std::vector<Sample> samples;
  const std::int64_t size = batch_size(step);
  for (std::int64_t at = shard; at < size; at += shards) samples.push_back(sample(step, at));
  return samples;
}

}  // namespace ddprun
