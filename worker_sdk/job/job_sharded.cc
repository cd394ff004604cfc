// What a job does with its sharded states, all of them alike.

#include <algorithm>
#include <utility>

#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/points.h"

namespace ddprun::elastic {

Sharded& JobInside::keep_sharded(std::string name, ShardedOptions options) {
  const auto same = [&](const auto& one) { return one->state_->name() == name; };
  if (group_) refuse("Job::keep_sharded", "\"" + name + "\" is to be kept before run()");
  if (std::any_of(sharded_.begin(), sharded_.end(), same)) {
    refuse("Job::keep_sharded", "\"" + name + "\" is kept already");
  }
  sharded_.push_back(std::make_unique<Sharded>(
      std::make_unique<ShardedState>(std::move(name), std::move(options))));
  return *sharded_.back();
}

std::uint64_t JobInside::signature_of_shards(std::uint64_t seed) const {
  for (const auto& one : sharded_) seed = one->state_->signature(seed);
  return seed;
}

ShardRound JobInside::shard_round(const ShardVersion& version) const {
  return {.nodes = nodes_, .version = version, .origin = origin_, .is_elastic = is_elastic()};
}

void JobInside::count(const ShardTraffic& traffic) {
  counters_.bytes_sent += traffic.sent;
  counters_.bytes_received += traffic.received;
}

void JobInside::stage_shards(const ShardVersion& version) {
  try {
    for (const auto& one : sharded_) count(one->state_->stage(*group_, shard_round(version)));
  } catch (const Error& error) {
    is_lost_ = error.kind() == ErrorKind::state_lost;
    throw;
  }
}

void JobInside::meet_with_shards() {
  if (sharded_.empty()) return;
  group_->barrier();
  pass("installed");
}

void JobInside::install_shards() {
  for (const auto& one : sharded_) one->state_->install();
}

void JobInside::begin_shards() {
  for (const auto& one : sharded_) one->state_->begin_step();
}

void JobInside::refresh_shards() {
  for (const auto& one : sharded_) one->state_->refresh(*group_, {committed() + 1, round()});
}

void JobInside::advance_shards() {
  for (const auto& one : sharded_) one->state_->advance({committed() + 1, round()});
}

void JobInside::spread_shards() {
  if (is_over()) return;
  const ShardRound round = shard_round({committed(), standing_.made});
  for (const auto& one : sharded_) count(one->state_->spread(*group_, round));
}

}  // namespace ddprun::elastic
