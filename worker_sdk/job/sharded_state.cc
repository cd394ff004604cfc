#include "worker_sdk/job/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/assert.h"
#include "worker_sdk/base/checksum.h"
#include "worker_sdk/job/points.h"

namespace ddprun::elastic {
namespace {

constexpr int kMostShards = 1 << 14;

std::vector<Buffer> no_parts(ProcessGroup& group) {
  return {static_cast<std::size_t>(group.world_size()), Buffer{nullptr, 0, DataType::u8}};
}

Buffer bytes_of(std::span<std::byte> memory) {
  return {memory.data(), memory.size(), DataType::u8};
}

}  // namespace

ShardedState::ShardedState(std::string name, ShardedOptions options)
    : name_(std::move(name)),
      options_(std::move(options)),
      cut_{options_.count, size_of(options_.type), options_.shards} {
  const bool is_sound =
      cut_.element_size > 0 && options_.shards > 0 && options_.shards <= kMostShards;
  if (is_sound) return;
  throw Error(ErrorKind::bad_argument, {.operation = "Job::keep_sharded"},
              "\"" + name_ + "\" needs an element type, and 1 to " + std::to_string(kMostShards) +
                  " shards");
}

std::uint64_t ShardedState::signature(std::uint64_t seed) const {
  const std::uint64_t numbers[] = {options_.count, static_cast<std::uint64_t>(options_.type),
                                   static_cast<std::uint64_t>(options_.shards)};
  return worker_sdk::checksum(numbers, sizeof(numbers),
                              worker_sdk::checksum(name_.data(), name_.size(), seed));
}

ShardTraffic ShardedState::stage(ProcessGroup& group, const ShardRound& round) {
  std::vector<ShardPlace> places;
  for (const int node : round.nodes) {
    places.push_back({group.host_of(static_cast<int>(places.size())), node});
  }
  if (options_.shards < group.world_size()) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "Job::keep_sharded"},
                "\"" + name_ + "\" has " + std::to_string(options_.shards) + " shards for " +
                    std::to_string(group.world_size()) +
                    " ranks; it needs as many as there may be ranks");
  }
  ShardLayout layout(std::move(places), options_.shards, round.is_elastic);
  std::vector<ShardBlock> mine;
  mine.emplace_back(cut_, layout.owned_by(group.rank()));
  for (const int ward : layout.wards_of(group.rank())) {
    mine.emplace_back(cut_, layout.owned_by(ward));
  }
  const ShardTraffic traffic = fetch(group, round, layout.wanted(), mine);
  for (ShardBlock& block : mine) spare_.push_back(std::move(block));
  staged_ = std::move(layout);
  rank_ = group.rank();
  is_elastic_ = round.is_elastic;
  return traffic;
}

void ShardedState::install() {
  DDPRUN_ASSERT(staged_.is_known());
  layout_ = std::exchange(staged_, ShardLayout());
  const std::vector<int> wards = layout_.wards_of(rank_);
  DDPRUN_ASSERT(spare_.size() > wards.size());
  auto block = spare_.end() - static_cast<std::ptrdiff_t>(wards.size() + 1);
  const auto pair_of = [&](int owner) {
    const ShardRange range = block->range();
    return Pair{owner, std::move(*block++), ShardBlock(cut_, range)};
  };
  own_ = pair_of(rank_);
  wards_.clear();
  for (const int ward : wards) wards_.push_back(pair_of(ward));
  spare_.clear();
  is_touched_ = false;
}

void ShardedState::forget() {
  own_ = {};
  wards_.clear();
  spare_.clear();
}

Buffer ShardedState::buffer_of(ShardBlock& block) const {
  const std::span<std::byte> memory = block.elements();
  return {memory.data(), memory.size() / cut_.element_size, options_.type};
}

Buffer ShardedState::next() {
  if (!std::exchange(is_touched_, true)) {
    own_.next.reopen();
    own_.next.copy_from(own_.now);
  }
  return buffer_of(own_.next);
}

void ShardedState::refresh(ProcessGroup& group, const ShardVersion& version) {
  const bool has_changed = is_touched_;
  if (is_elastic_) require_sound(group, own_.now, -1);  // Before next() may be a copy of it.
  (void)next();
  if (!is_elastic_) return;  // Nobody reads the checksums.
  if (has_changed) own_.next.seal();
  pass("refresh");
  if (const int keeper = layout_.keeper_of(rank_); keeper >= 0) {
    std::vector<Buffer> out = no_parts(group), in = out;
    out[static_cast<std::size_t>(keeper)] = bytes_of(own_.next.memory());
    for (Pair& ward : wards_) {
      ward.next.reopen();
      in[static_cast<std::size_t>(ward.owner)] = bytes_of(ward.next.memory());
    }
    group.all_to_all(PartsBuffer(std::move(out)), PartsBuffer(std::move(in)), {.on_host = true});
  }
  pass("exchanged");
  own_.next.finish(version);
  for (Pair& ward : wards_) {
    require_sound(group, ward.next, ward.owner);
    ward.next.finish(version);
  }
  pass("refreshed");
}

void ShardedState::advance(const ShardVersion& version) noexcept {
  own_.next.finish(version);
  std::swap(own_.now, own_.next);
  for (Pair& ward : wards_) std::swap(ward.now, ward.next);
  is_touched_ = false;
}

ShardTraffic ShardedState::spread(ProcessGroup& group, const ShardRound& round) {
  const Wanted wanted = layout_.spread();
  const auto is_needed = [](const std::vector<int>& ranks) { return !ranks.empty(); };
  if (std::none_of(wanted.begin(), wanted.end(), is_needed)) return {};
  std::vector<ShardBlock> mine;
  for (int shard = 0; shard < options_.shards; ++shard) {
    const auto& ranks = wanted[static_cast<std::size_t>(shard)];
    if (std::find(ranks.begin(), ranks.end(), group.rank()) == ranks.end()) continue;
    mine.emplace_back(cut_, ShardRange{shard, shard + 1});
  }
  pass("spread");
  const ShardTraffic traffic = fetch(group, round, wanted, mine);
  for (ShardBlock& block : mine) spare_.push_back(std::move(block));
  return traffic;
}

void ShardedState::gather(ProcessGroup& group, const Buffer& mine, const Buffer& whole) const {
  if (whole.count != options_.count || whole.type != options_.type) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "Sharded::gather"},
                "\"" + name_ + "\" has " + std::to_string(options_.count) + " elements of " +
                    name_of(options_.type));
  }
  std::vector<Buffer> parts;
  auto* const bytes = static_cast<std::byte*>(whole.data);
  for (int r = 0; r < group.world_size(); ++r) {
    const ShardRange range = layout_.owned_by(r);
    parts.push_back({bytes + cut_.bytes_of({0, range.first}),
                     cut_.bytes_of(range) / cut_.element_size, options_.type});
  }
  group.all_gather(mine, PartsBuffer(std::move(parts)), {.on_host = true});
}

}  // namespace ddprun::elastic
