// ddprun/c/c_elastic.h: batches and sums. Jobs are in c_job.cc.

#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/random_stream.h"
#include "worker_sdk/c/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_sums {
  GradientSums sums;
  const std::vector<std::size_t> sizes;
  std::string state = {};
};

namespace {

// The one struct that never grows: programs index arrays of it.
static_assert(sizeof(ddprun_sample) == 3 * sizeof(std::int64_t));
static_assert(kGrows<ddprun_data_set> && kGrows<ddprun_batch_options> &&
              kGrows<ddprun_sum_options> && kGrows<ddprun_sum_result>);

GlobalBatchOptions batch_options_of(const ddprun_batch_options* given) {
  const auto options = struct_of(given);
  require_argument(options.reserved == 0, "a reserved field is not 0");
  require_argument(options.last >= DDPRUN_LAST_SMALLER && options.last <= DDPRUN_LAST_CONTINUES,
                   "unknown kind of last batch");
  GlobalBatchOptions result;
  for (std::size_t i = 0; i < options.set_count; ++i) {
    const auto set = struct_of(options.sets, i);
    result.sets.push_back({.length = set.length, .per_batch = set.per_batch});
  }
  result.global_batch = options.global_batch;
  result.shards = options.shards;
  result.seed = options.seed;
  result.shuffle = options.shuffle != 0;
  result.last = static_cast<LastBatch>(options.last);
  return result;
}

// The program's arrays, which are as long as the tensors; null: empty.
template <class T>
std::vector<std::span<T>> spans_of(const ddprun_sums& sums, T* const* arrays) {
  require_argument(arrays, "the arrays are null");
  std::vector<std::span<T>> spans;
  for (std::size_t i = 0; i < sums.sizes.size(); ++i) {
    spans.push_back(arrays[i] ? std::span<T>(arrays[i], sums.sizes[i]) : std::span<T>());
  }
  return spans;
}

}  // namespace

namespace ddprun::worker_sdk {

void lend_samples(const std::vector<Sample>& samples, std::vector<ddprun_sample>& kept,
                  const ddprun_sample** first, std::size_t* count) {
  require_argument(first && count, "a pointer is null");
  kept.clear();
  for (const Sample& sample : samples) kept.push_back({sample.set, sample.index, sample.epoch});
  *first = kept.data();
  *count = kept.size();
}

}  // namespace ddprun::worker_sdk

extern "C" {

ddprun_status ddprun_batches_create(const ddprun_batch_options* options, ddprun_batches** batches) {
  return guarded([&] {
    require_argument(batches, "the place for the handle is null");
    *batches = nullptr;
    *batches = new ddprun_batches{GlobalBatches(batch_options_of(options))};
  });
}

void ddprun_batches_destroy(ddprun_batches* batches) { delete batches; }

ddprun_status ddprun_batches_steps_per_epoch(const ddprun_batches* batches, int64_t* steps) {
  return guarded([&] {
    require_argument(steps, "a pointer is null");
    *steps = live(batches).batches.steps_per_epoch();
  });
}

ddprun_status ddprun_batches_size(const ddprun_batches* batches, int64_t step, int64_t* count) {
  return guarded([&] {
    require_argument(count, "a pointer is null");
    *count = live(batches).batches.batch_size(step);
  });
}

ddprun_status ddprun_batches_samples(const ddprun_batches* batches, int64_t step, int shard,
                                     const ddprun_sample** samples, size_t* count) {
  return guarded([&] {
    thread_local std::vector<ddprun_sample> kept;
    const GlobalBatches& all = live(batches).batches;
    lend_samples(shard == -1 ? all.batch(step) : all.shard(step, shard), kept, samples, count);
  });
}

ddprun_status ddprun_shards_of(int rank, int world_size, int shards, int* first, int* count) {
  return guarded([&] {
    require_argument(first && count, "a pointer is null");
    const auto mine = shards_of(rank, world_size, shards);
    *count = static_cast<int>(mine.size());
    *first = mine.empty() ? 0 : mine.front();
  });
}

uint64_t ddprun_stream_seed(uint64_t seed, uint64_t step, uint32_t shard, uint32_t shards) {
  return stream_seed(seed, step, shard, shards);
}

ddprun_status ddprun_sums_create(const size_t* sizes, size_t count,
                                 const ddprun_sum_options* options, ddprun_sums** sums) {
  return guarded([&] {
    require_argument(sums && (sizes || count == 0), "a pointer is null");
    *sums = nullptr;
    const auto given = options_of(options);
    require_argument(given.reserved == 0, "a reserved field is not 0");
    GradientSumOptions wanted;
    wanted.exact = given.inexact == 0;
    wanted.equal = given.equal;
    if (given.bucket_bytes) wanted.bucket_bytes = given.bucket_bytes;
    const std::vector<std::size_t> each(sizes, sizes + count);
    *sums = new ddprun_sums{GradientSums(each, wanted), each};
  });
}

void ddprun_sums_destroy(ddprun_sums* sums) { delete sums; }

ddprun_status ddprun_sums_use(ddprun_sums* sums, ddprun_group* group) {
  return guarded([&] { live(sums).sums.use(live(group).group); });
}

ddprun_status ddprun_sums_begin(ddprun_sums* sums) {
  return guarded([&] { live(sums).sums.begin(); });
}

ddprun_status ddprun_sums_add(ddprun_sums* sums, const float* const* gradients) {
  return guarded([&] { live(sums).sums.add(spans_of(*sums, gradients)); });
}

ddprun_status ddprun_sums_reduce(ddprun_sums* sums, ddprun_group* group, float* const* gradients,
                                 double divide_by, int64_t note, ddprun_sum_result* result) {
  return guarded([&] {
    (void)struct_of(result);  // Before anything is communicated.
    const auto found = live(sums).sums.reduce(live(group).group, spans_of(*sums, gradients),
                                              {.divide_by = divide_by, .note = note});
    fill(result, {0, static_cast<int64_t>(found.kind), found.note, found.shards, found.tensor});
  });
}

ddprun_status ddprun_sums_commit(ddprun_sums* sums) {
  return guarded([&] { live(sums).sums.commit(); });
}

ddprun_status ddprun_sums_state(ddprun_sums* sums, const void** state, size_t* bytes) {
  return guarded([&] {
    require_argument(sums && state && bytes, "a pointer is null");
    sums->state = sums->sums.state();
    *state = sums->state.data();
    *bytes = sums->state.size();
  });
}

ddprun_status ddprun_sums_restore(ddprun_sums* sums, const void* state, size_t bytes) {
  return guarded([&] {
    require_argument(state || bytes == 0, "the state is null");
    live(sums).sums.restore({static_cast<const char*>(state), bytes});
  });
}

}  // extern "C"
