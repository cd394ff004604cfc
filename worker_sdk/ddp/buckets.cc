#include "worker_sdk/ddp/buckets.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The bucket that a type is filling at the moment.
struct Filling {
  std::vector<std::size_t> items;
  std::size_t bytes = 0;
  std::size_t closed = 0;  // Buckets of this type before it.
};

}  // namespace

std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<PackItem>& items,
                                                     const std::vector<std::size_t>& limits) {
  DDPRUN_ASSERT(!limits.empty());
  std::vector<std::vector<std::size_t>> buckets;
  std::map<DataType, Filling> filling;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Filling& current = filling[items[i].type];
    current.items.push_back(i);
    current.bytes += items[i].count * size_of(items[i].type);
    if (current.bytes < limits[std::min(current.closed, limits.size() - 1)]) continue;
    buckets.push_back(std::exchange(current.items, {}));
    current.bytes = 0;
    ++current.closed;
  }
  for (auto& [type, rest] : filling) {
    if (!rest.items.empty()) buckets.push_back(std::move(rest.items));
  }
  std::sort(buckets.begin(),
            buckets.end());  // Disjoint and ascending: this compares first positions.
  return buckets;
}

std::vector<std::vector<std::size_t>> assign_buckets_in_order(
    const std::vector<PackItem>& items, const std::vector<std::size_t>& order,
    const std::vector<std::size_t>& limits) {
  DDPRUN_ASSERT(order.size() == items.size());
  std::vector<PackItem> arriving;
  for (const std::size_t position : order) arriving.push_back(items.at(position));
  auto buckets = assign_buckets(arriving, limits);
  for (auto& bucket : buckets) {
    for (std::size_t& position : bucket) position = order[position];
  }
  return buckets;
}

BucketLayout lay_out(const std::vector<PackItem>& items, int world_size, std::size_t tail_bytes) {
  BucketLayout layout;
  for (const PackItem& item : items) {
    layout.offsets.push_back(layout.bytes);
    layout.bytes = round_up(layout.bytes + item.count * size_of(item.type), kGradientAlignment);
  }
  layout.tail = layout.bytes;
  layout.bytes += tail_bytes;
  layout.bytes = round_up(layout.bytes, kGradientAlignment * static_cast<std::size_t>(world_size));
  return layout;
}

}  // namespace ddprun::worker_sdk
