#include "worker_sdk/ddp/buckets.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "common/assert.h"
#include "worker_sdk/transport/reduce.h"

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

namespace {

void copy(ProcessGroup& group, const Buffer& from, const Buffer& to) {
  group.copy(to.data, from.data, from.bytes());
}

template <class T>
void put(void* data, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

void put(const Buffer& to, std::size_t i, float value) {
  switch (to.type) {
    case DataType::f32: return put<float>(to.data, i, value);
    case DataType::f64: return put<double>(to.data, i, value);
    case DataType::f16: return put<std::uint16_t>(to.data, i, f32_to_f16(value));
    case DataType::bf16: return put<std::uint16_t>(to.data, i, f32_to_bf16(value));
    default: return;  // Parameters are of no other type.
  }
}

}  // namespace

BucketOrder order_of_arrival(const std::vector<Parameter>& parameters, const DdpOptions& options,
                             const std::vector<std::size_t>& arrival) {
  std::vector<PackItem> items;
  for (const Parameter& p : parameters) items.push_back({p.value.type, p.value.count});
  return assign_buckets_in_order(items, arrival,
                                 {options.first_bucket_bytes, options.bucket_bytes});
}

BucketOrder expected_order(const std::vector<Parameter>& parameters, const DdpOptions& options) {
  std::vector<std::size_t> arrival;
  for (std::size_t p = parameters.size(); p-- > 0;) arrival.push_back(p);
  return order_of_arrival(parameters, options, arrival);
}

BucketSet::BucketSet(ProcessGroup& group, const std::vector<Parameter>& parameters,
                     BucketOrder order, bool tail)
    : order_(std::move(order)),
      gradients_(parameters.size()),
      home_(parameters.size()),
      used_(tail ? parameters.size() : 0) {
  for (std::size_t b = 0; b < order_.size(); ++b) {
    lay_out_bucket(group, parameters, tail && b + 1 == order_.size());
  }
}

void BucketSet::lay_out_bucket(ProcessGroup& group, const std::vector<Parameter>& parameters,
                               bool tail) {
  const std::size_t b = buckets_.size();
  std::vector<PackItem> items;
  for (const std::size_t p : order_[b]) {
    items.push_back({parameters[p].value.type, parameters[p].value.count});
  }
  const DataType type = items.front().type;
  const std::size_t tail_count = tail ? parameters.size() : 0;
  const BucketLayout layout = lay_out(items, group.world_size(), tail_count * size_of(type));
  auto memory = group.allocate(layout.bytes);
  auto* start = static_cast<char*>(memory.get());
  GradientBucket bucket{.index = b,
                        .last = b + 1 == order_.size(),
                        .flat = {start, layout.bytes / size_of(type), type},
                        .pieces = {},
                        .tail = {start + layout.tail, tail_count, type}};
  for (std::size_t k = 0; k < items.size(); ++k) {
    const std::size_t p = order_[b][k];
    gradients_[p] = {start + layout.offsets[k], items[k].count, type};
    home_[p] = b;
    bucket.pieces.push_back({p, gradients_[p], parameters[p].shape});
  }
  buckets_.push_back(std::move(bucket));
  memory_.push_back(std::move(memory));
}

void BucketSet::zero(ProcessGroup& group) {
  read_tail(group);
  for (const GradientBucket& bucket : buckets_) group.zero(bucket.flat.data, bucket.flat.bytes());
}

void BucketSet::take_over(ProcessGroup& group, BucketSet& from) {
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    copy(group, from.gradients_[p], gradients_[p]);
  }
  from.read_tail(group);
  used_ = from.used_;
}

void BucketSet::broadcast_values(ProcessGroup& group, const std::vector<Parameter>& parameters,
                                 int root) {
  for (const GradientBucket& bucket : buckets_) {
    for (const auto& piece : bucket.pieces) {
      if (group.rank() == root) {
        copy(group, parameters[piece.parameter].value, piece.gradient);
      }
    }
    group.broadcast(bucket.flat, root);
    for (const auto& piece : bucket.pieces) {
      if (group.rank() != root) {
        copy(group, piece.gradient, parameters[piece.parameter].value);
      }
    }
  }
}

void BucketSet::write_tail(ProcessGroup& group, const std::vector<bool>& used) {
  if (used_.empty()) return;
  const Buffer& tail = buckets_.back().tail;
  read_tail(group);  // Before its content, of the pass before, is lost.
  in_flight_ = true;
  std::vector<std::byte> bytes(tail.bytes());
  for (std::size_t p = 0; p < tail.count; ++p) {
    put({bytes.data(), tail.count, tail.type}, p, used[p] ? 1.0F : 0.0F);
  }
  group.copy(tail.data, bytes.data(), bytes.size());
}

void BucketSet::tail_has_come() { unread_ = std::exchange(in_flight_, false); }

// Zero is all bits zero in each of these types, and an average of ones and zeros has no other one.
void BucketSet::read_tail(ProcessGroup& group) {
  if (!std::exchange(unread_, false)) return;
  const Buffer& tail = buckets_.back().tail;
  const std::size_t element = size_of(tail.type);
  std::vector<char> bytes(tail.bytes());
  group.copy(bytes.data(), tail.data, bytes.size());
  for (std::size_t p = 0; p < tail.count; ++p) {
    const auto value = std::span(bytes).subspan(p * element, element);
    used_[p] = std::ranges::any_of(value, [](char byte) { return byte != 0; });
  }
}

bool BucketSet::used(ProcessGroup& group, std::size_t parameter) {
  if (used_.empty()) return true;
  read_tail(group);
  return used_.at(parameter);
}

}  // namespace ddprun::worker_sdk
