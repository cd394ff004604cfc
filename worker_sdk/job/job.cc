// The public classes of ddprun/elastic/job.h: they check the caller and pass calls on.

#include "ddprun/elastic/job.h"

#include <utility>

#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/piece.h"

namespace ddprun::elastic {

std::int64_t Step::number() const noexcept { return state_.number; }
bool Step::is_repeated() const noexcept { return state_.is_repeated; }
int Step::round() const noexcept { return state_.job.round(); }
ProcessGroup& Step::group() noexcept {
  state_.job.end_shard();
  return state_.job.group();
}
int Step::rank() const { return state_.job.group().rank(); }
int Step::world_size() const { return state_.job.group().world_size(); }

std::ranges::iota_view<int, int> Step::shards(int shards) const {
  return shards_of(rank(), world_size(), shards);
}
std::ranges::iota_view<int, int> Step::shards(const GlobalBatches& batches) const {
  return shards(batches.shards());
}

bool Step::begin_shard(int shard, std::string_view content) {
  return state_.job.begin_shard(state_, shard, content);
}
bool Step::skips(int shard) const { return state_.job.skips(state_, shard); }
std::vector<Sample> Step::samples(const GlobalBatches& batches, int shard) {
  state_.job.require_round(state_);
  if (skips(shard)) return {};
  std::vector<Sample> result = batches.shard(number(), shard);
  begin_shard(shard, text_of(result));
  return result;
}

void Step::commit(const std::function<void()>& apply) { state_.job.commit(state_, apply); }
std::int32_t Step::vote() { return state_.job.vote(state_); }
void Step::voted(bool leave) { state_.voted = leave; }

Job::Job(JobOptions options) : inside_(std::make_unique<JobInside>(std::move(options))) {}
Job::~Job() = default;

Job& Job::keep(std::string name, Buffer array) {
  inside_->require_usable("Job::keep");
  inside_->kept().add({.name = std::move(name), .array = array});
  return *this;
}

Job& Job::keep(std::string name, Save save, Load load) {
  inside_->require_usable("Job::keep");
  if (!save || !load) inside_->refuse("Job::keep", "\"" + name + "\" needs two functions");
  inside_->kept().add({.name = std::move(name), .save = std::move(save), .load = std::move(load)});
  return *this;
}

Sharded& Job::keep_sharded(std::string name, ShardedOptions options) {
  inside_->require_usable("Job::keep_sharded");
  return inside_->keep_sharded(std::move(name), std::move(options));
}

void Job::resume(std::int64_t step) {
  inside_->require_usable("Job::resume");
  inside_->resume(step);
}

Job& Job::between(std::int64_t every, Between body) {
  inside_->require_usable("Job::between");
  inside_->add_between(every, std::move(body));
  return *this;
}

void Job::run(std::int64_t steps, const Body& body) {
  inside_->require_usable("Job::run");
  inside_->run(steps, body);
}

std::int64_t Job::committed() const noexcept { return inside_->committed(); }
int Job::rank() const noexcept { return inside_->rank(); }
int Job::world_size() const noexcept { return inside_->world_size(); }
const JobCounters& Job::counters() const noexcept { return inside_->counters(); }

}  // namespace ddprun::elastic
