#include "ddprun/seeds.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "ddprun/distributed_sampler.h"
#include "ddprun/error.h"
#include "ddprun/process_group.h"
#include "ddprun/sharding.h"

namespace ddprun {
namespace {

// From the kernel: std::random_device would tie the program to the newest C library.
std::uint64_t random_number(const ProcessGroup& group) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
  const std::string why = std::generic_category().message(errno);
  throw Error(ErrorKind::system, {.rank = group.rank(), .operation = "shared_seed"},
              "getrandom: " + why);
}

}  // namespace

std::uint64_t shared_seed(ProcessGroup& group) {
  std::int64_t seed = group.rank() == 0 ? static_cast<std::int64_t>(random_number(group)) : 0;
  group.broadcast(buffer(&seed, 1), 0, {.on_host = true});
  return static_cast<std::uint64_t>(seed);
}

namespace {

[[noreturn]] void refuse_shares(const char* operation, const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = operation}, text);
}

void check(const ProcessGroup& group, const std::vector<std::vector<std::size_t>>& shares,
           std::span<const Buffer> values) {
  if (shares.size() != static_cast<std::size_t>(group.world_size())) {
    refuse_shares("broadcast_shares", std::to_string(shares.size()) + " shares for " +
                                          std::to_string(group.world_size()) + " ranks");
  }
  for (const auto& share : shares) {
    for (const std::size_t i : share) {
      if (i >= values.size()) {
        refuse_shares("broadcast_shares", "there is no parameter " + std::to_string(i));
      }
    }
  }
}

std::size_t bytes_in(const std::vector<std::size_t>& share, std::span<const Buffer> values) {
  std::size_t bytes = 0;
  for (const std::size_t i : share) bytes += values[i].bytes();
  return bytes;
}

}  // namespace

std::vector<std::vector<std::size_t>> partition_greedily(std::span<const std::int64_t> sizes,
                                                         int world_size) {
  if (world_size < 1) {
    refuse_shares("partition_greedily", "world_size is " + std::to_string(world_size));
  }
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<std::size_t>> shares(static_cast<std::size_t>(world_size));
  std::vector<std::int64_t> loads(shares.size());
  for (const std::size_t i : order) {
    // min_element gives the first of equals.
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += sizes[i];
    shares[static_cast<std::size_t>(least - loads.begin())].push_back(i);
  }
  return shares;
}

void broadcast_shares(ProcessGroup& group, const std::vector<std::vector<std::size_t>>& shares,
                      std::span<const Buffer> values) {
  check(group, shares, values);
  if (group.world_size() == 1) return;
  std::vector<std::uint8_t> packed;
  const auto copy = [](void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);  // An empty array may be null.
  };
  for (int root = 0; root < group.world_size(); ++root) {
    const auto& share = shares[static_cast<std::size_t>(root)];
    packed.resize(bytes_in(share, values));
    std::uint8_t* at = packed.data();
    const bool mine = root == group.rank();
    for (const std::size_t i : mine ? share : std::vector<std::size_t>()) {
      copy(at, values[i].data, values[i].bytes());
      at += values[i].bytes();
    }
    group.broadcast(buffer(packed.data(), packed.size()), root, {.on_host = true});
    for (const std::size_t i : mine ? std::vector<std::size_t>() : share) {
      copy(values[i].data, at, values[i].bytes());
      at += values[i].bytes();
    }
  }
}

// DistributedSampler: pure arithmetic, equal to PyTorch's bit for bit (tests/golden/sampler.txt).

namespace {

// Below this, PyTorch draws 32 bits for a swap and above it 64, so that the remainder stays
// unbiased.
constexpr std::int64_t kWideFrom = std::numeric_limits<std::uint32_t>::max() / 20;

// PyTorch's CPU generator takes the low 32 bits of the seed.
std::mt19937 engine(std::uint64_t seed) { return std::mt19937(static_cast<std::uint32_t>(seed)); }

void permute_narrow(std::vector<std::int64_t>& v, std::mt19937 random) {
  const auto n = v.size();
  for (std::size_t i = 0; i + 1 < n; ++i) std::swap(v[i], v[i + random() % (n - i)]);
}

void permute_wide(std::vector<std::int64_t>& v, std::mt19937 random) {
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::uint64_t high = random();
    const std::uint64_t low = random();
    const std::size_t j = (high << 32 | low) % (i + 1);
    v[i] = std::exchange(v[j], static_cast<std::int64_t>(i));
  }
}

// `length` samples dealt out.
std::int64_t samples_per_rank(std::int64_t length, int world_size, bool drop_last) {
  const std::int64_t whole = length / world_size;
  return whole + (!drop_last && length % world_size != 0 ? 1 : 0);
}

[[noreturn]] void refuse_sampler(const char* operation, const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = operation}, text);
}

void check(const SamplerShare& o) {
  const auto fail = [](const std::string& text) { refuse_sampler("DistributedSampler", text); };
  if (o.length < 0) fail("the data set has " + std::to_string(o.length) + " samples");
  if (o.world_size < 1) fail("world_size is " + std::to_string(o.world_size));
  if (o.rank < 0 || o.rank >= o.world_size) {
    fail("rank " + std::to_string(o.rank) + " is not within 0 .. " +
         std::to_string(o.world_size - 1));
  }
}

}  // namespace

std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed) {
  if (n < 0) {
    refuse_sampler("random_permutation", "a permutation of " + std::to_string(n) + " elements");
  }
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), std::int64_t{0});
  n < kWideFrom ? permute_narrow(v, engine(seed)) : permute_wide(v, engine(seed));
  return v;
}

DistributedSampler::DistributedSampler(const ProcessGroup& group, std::int64_t length,
                                       const SamplerOptions& options)
    : DistributedSampler({.length = length, .world_size = group.world_size(), .rank = group.rank()},
                         options) {}

DistributedSampler::DistributedSampler(const SamplerShare& share, const SamplerOptions& options)
    : share_(share), options_(options) {
  check(share);
  num_samples_ = samples_per_rank(share.length, share.world_size, options.drop_last);
}

void DistributedSampler::set_epoch(std::int64_t epoch) noexcept {
  if (epoch != epoch_) consumed_ = 0;
  epoch_ = epoch;
}

std::int64_t DistributedSampler::remaining() const noexcept {
  return samples_per_rank(std::max<std::int64_t>(share_.length - consumed_, 0), share_.world_size,
                          options_.drop_last);
}

void DistributedSampler::advance(std::int64_t count) {
  if (count < 0 || count > remaining()) {
    refuse_sampler("DistributedSampler", "cannot advance by " + std::to_string(count) + " of " +
                                             std::to_string(remaining()) + " samples");
  }
  consumed_ += count * share_.world_size;
}

void DistributedSampler::load(const SamplerState& state) {
  if (state.epoch < 0 || state.consumed < 0) {
    refuse_sampler("DistributedSampler", "there is no epoch " + std::to_string(state.epoch) +
                                             " with " + std::to_string(state.consumed) +
                                             " samples read");
  }
  epoch_ = state.epoch;
  consumed_ = state.consumed;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    order = random_permutation(share_.length, options_.seed + static_cast<std::uint64_t>(epoch_));
  }
  std::vector<std::int64_t> mine(static_cast<std::size_t>(remaining()));
  // Past the end, the list starts again from its beginning; only without drop_last does it get
  // there.
  std::int64_t position = consumed_ + share_.rank;
  for (std::int64_t& index : mine) {
    const std::int64_t at = position % share_.length;
    index = options_.shuffle ? order[static_cast<std::size_t>(at)] : at;
    position += share_.world_size;
  }
  return mine;
}

std::vector<std::vector<std::int64_t>> batches(std::span<const std::int64_t> indices,
                                               std::int64_t batch_size, bool drop_last) {
  if (batch_size < 1) refuse_sampler("batches", "batch_size is " + std::to_string(batch_size));
  const auto size = static_cast<std::size_t>(batch_size);
  std::vector<std::vector<std::int64_t>> result;
  while (!indices.empty() && (indices.size() >= size || !drop_last)) {
    const auto batch = indices.first(std::min(size, indices.size()));
    result.emplace_back(batch.begin(), batch.end());
    indices = indices.subspan(batch.size());
  }
  return result;
}

}  // namespace ddprun
