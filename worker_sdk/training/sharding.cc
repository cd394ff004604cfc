#include "ddprun/sharding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace ddprun {
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

}  // namespace ddprun
