// ddprun/c/c_elastic.h: batches and sums. Jobs are in c_job.cc.

#include "ddprun/elastic/global_batches.h"

#include <cstddef>

#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "ddprun/elastic/random_stream.h"
#include "worker_sdk/c/c_handles.h"

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

void give_sum(const GradientSums::Result& found, ddprun_sum_result* result) {
  fill(result, {0, static_cast<int64_t>(found.kind), found.note, found.shards, found.tensor});
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
    require_argument(batches, "the pointer for the handle is null");
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
    give_sum(found, result);
  });
}

ddprun_status ddprun_sums_commit(ddprun_sums* sums) {
  return guarded([&] { live(sums).sums.commit(); });
}

ddprun_status ddprun_sums_hash(ddprun_sums* sums, const float* const* gradients, uint64_t* hash) {
  return guarded([&] {
    require_argument(hash, "a pointer is null");
    *hash = live(sums).sums.hash(spans_of(*sums, gradients));
  });
}

int ddprun_sums_is_finite(const ddprun_sums* sums) {
  return answer(-1, [&] { return live(sums).sums.is_finite() ? 1 : 0; });
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

// ddprun/c/c_elastic.h: jobs with ranks that change. A status that a function of the program
// returns becomes the exception that a function of C++ would throw.

using namespace ddprun;
using namespace ddprun::worker_sdk;
using elastic::Job;
using elastic::JobOptions;
using elastic::Sharded;
using elastic::ShardedOptions;
using elastic::Step;

struct ddprun_sharded {
  Sharded& sharded;
};
struct ddprun_job {
  Job job;
  std::vector<std::unique_ptr<ddprun_sharded>> shardeds = {};  // Handles of the program.
};
struct ddprun_step {
  Step& step;
  ddprun_group group;  // A handle that lives as long as the body runs.
};

// The size of the struct before check_every was added.
template <>
constexpr std::size_t ddprun::worker_sdk::kFirstSize<ddprun_job_options> =
    offsetof(ddprun_job_options, check_every);
// Before moved_shards was added.
template <>
constexpr std::size_t ddprun::worker_sdk::kFirstSize<ddprun_job_counters> =
    offsetof(ddprun_job_counters, moved_shards);

namespace {

static_assert(kGrows<ddprun_job_counters> && kGrows<ddprun_job_options> &&
              kGrows<ddprun_sharded_options>);

// A function of the program has returned a number of its own.
struct Ended {
  int32_t code = 0;
};

void require_well(int32_t returned) {
  if (returned == DDPRUN_OK) return;
  if (returned < 0) throw Ended{returned};
  rethrow(returned);
}

// Like guarded(), if functions of the program run.
template <class Body>
ddprun_status guarded_functions(const Body& body) {
  std::optional<Ended> ended;
  const ddprun_status status = guarded([&] {
    try {
      body();
    } catch (const Ended& e) {
      ended = e;
      throw Error(ErrorKind::aborted, {},
                  "a function of the program returned " + std::to_string(e.code));
    }
  });
  return ended ? ended->code : status;
}

ShardedOptions sharded_options_of(const ddprun_sharded_options* options) {
  const auto given = struct_of(options);
  const ddprun_buffer like = DDPRUN_BUFFER(nullptr, 0, given.type);
  ShardedOptions result{
      .count = given.count, .type = buffer_of(&like).type, .shards = given.shards};
  if (given.fill) {
    result.fill = [fill = given.fill, user = given.user](std::size_t first, Buffer part) {
      const auto type = static_cast<ddprun_type>(part.type);
      const ddprun_buffer elements = DDPRUN_BUFFER(part.data, part.count, type);
      require_well(fill(user, first, &elements));
    };
  }
  return result;
}

double audit_of(const ddprun_job_options& options) {
  constexpr double kPercent = 10'000;             // In parts per million.
  if (options.audit_per_million == 0) return -1;  // DDPRUN_AUDIT.
  return std::max(options.audit_per_million, 0) / kPercent;
}

void give_part(const Sharded& sharded, const Buffer& part, size_t* first, ddprun_buffer* given) {
  if (first) *first = sharded.first();
  fill(given, DDPRUN_BUFFER(part.data, part.count, static_cast<ddprun_type>(part.type)));
}

}  // namespace

extern "C" {

ddprun_status ddprun_job_create(const ddprun_init_options* options, ddprun_job** job) {
  ddprun_job_options with = {};
  with.size = sizeof with;
  with.init = options;
  return ddprun_job_create_with(&with, job);
}

ddprun_status ddprun_job_create_with(const ddprun_job_options* options, ddprun_job** job) {
  return guarded([&] {
    require_argument(job, "the pointer for the handle is null");
    *job = nullptr;
    const auto given = options_of(options);
    require_argument(given.audit_per_million >= -1, "audit_per_million is below -1");
    *job = new ddprun_job{.job = Job(JobOptions{.init = init_options_of(given.init),
                                                .skip_poison = given.skip_poison != 0,
                                                .min_world = given.min_world,
                                                .check_every = given.check_every,
                                                .even_shards = given.even_shards != 0,
                                                .audit = audit_of(given),
                                                .memory_every = given.memory_every})};
  });
}

void ddprun_job_destroy(ddprun_job* job) { delete job; }

ddprun_status ddprun_job_keep(ddprun_job* job, const char* name, const ddprun_buffer* array) {
  return guarded([&] {
    require_argument(name, "the name is null");
    live(job).job.keep(name, buffer_of(array));
  });
}

ddprun_status ddprun_job_keep_state(ddprun_job* job, const char* name, ddprun_save_state save,
                                    ddprun_load_state load, void* user) {
  return guarded([&] {
    require_argument(name && save && load, "a pointer is null");
    live(job).job.keep(
        name,
        [save, user] {
          const void* state = nullptr;
          std::size_t bytes = 0;
          require_well(save(user, &state, &bytes));
          return std::string(static_cast<const char*>(state), state ? bytes : 0);
        },
        [load, user](std::string_view state) {
          require_well(load(user, state.data(), state.size()));
        });
  });
}

ddprun_status ddprun_job_keep_sharded(ddprun_job* job, const char* name,
                                      const ddprun_sharded_options* options,
                                      ddprun_sharded** sharded) {
  return guarded([&] {
    require_argument(name && sharded, "a pointer is null");
    *sharded = nullptr;
    Sharded& kept = live(job).job.keep_sharded(name, sharded_options_of(options));
    job->shardeds.push_back(std::make_unique<ddprun_sharded>(ddprun_sharded{kept}));
    *sharded = job->shardeds.back().get();
  });
}

ddprun_status ddprun_sharded_now(ddprun_sharded* sharded, size_t* first, ddprun_buffer* part) {
  return guarded([&] {
    Sharded& state = live(sharded).sharded;
    give_part(state, state.now(), first, part);
  });
}
ddprun_status ddprun_sharded_next(ddprun_sharded* sharded, size_t* first, ddprun_buffer* part) {
  return guarded([&] {
    Sharded& state = live(sharded).sharded;
    give_part(state, state.next(), first, part);
  });
}

ddprun_status ddprun_sharded_gather(ddprun_sharded* sharded, ddprun_group* group,
                                    const ddprun_buffer* whole) {
  return guarded([&] { live(sharded).sharded.gather(live(group).group, buffer_of(whole)); });
}
ddprun_status ddprun_sharded_gather_next(ddprun_sharded* sharded, ddprun_group* group,
                                         const ddprun_buffer* whole) {
  return guarded([&] { live(sharded).sharded.gather_next(live(group).group, buffer_of(whole)); });
}

ddprun_status ddprun_job_resume(ddprun_job* job, int64_t step) {
  return guarded([&] { live(job).job.resume(step); });
}

ddprun_status ddprun_job_between(ddprun_job* job, int64_t every, ddprun_between body, void* user) {
  return guarded([&] {
    require_argument(body, "the function is null");
    live(job).job.between(every, [body, user](ProcessGroup& group) {
      ddprun_group handle{group.share()};
      require_well(body(&handle, user));
    });
  });
}

ddprun_status ddprun_job_run(ddprun_job* job, int64_t steps, ddprun_step_body body, void* user) {
  return guarded_functions([&] {
    require_argument(body, "the function is null");
    live(job).job.run(steps, [&](Step& step) {
      ddprun_step handle{step, {step.group().share()}};
      require_well(body(&handle, user));
    });
  });
}

int64_t ddprun_job_committed(const ddprun_job* job) {
  return answer<int64_t>(-1, [&] { return live(job).job.committed(); });
}

int ddprun_job_rank(const ddprun_job* job) {
  return answer(-1, [&] { return live(job).job.rank(); });
}
int ddprun_job_world_size(const ddprun_job* job) {
  return answer(-1, [&] { return live(job).job.world_size(); });
}

ddprun_status ddprun_job_counters_of(const ddprun_job* job, ddprun_job_counters* counters) {
  return guarded([&] {
    const auto& c = live(job).job.counters();
    fill(counters, {0, c.rounds, c.planned, c.repeated_steps, c.bytes_sent, c.bytes_received,
                    c.lost.count(), c.moved_shards, c.audited_shards});
  });
}

int64_t ddprun_step_number(const ddprun_step* step) {
  return answer<int64_t>(-1, [&] { return live(step).step.number(); });
}
int ddprun_step_is_repeated(const ddprun_step* step) {
  return answer(-1, [&] { return live(step).step.is_repeated() ? 1 : 0; });
}
int ddprun_step_round(const ddprun_step* step) {
  return answer(-1, [&] { return live(step).step.round(); });
}
ddprun_group* ddprun_step_group(ddprun_step* step) {
  return answer<ddprun_group*>(nullptr, [&] {
    (void)live(step).step.group();  // Ends a shard.
    return &step->group;
  });
}

ddprun_status ddprun_step_shards(ddprun_step* step, const ddprun_batches* batches, int shards,
                                 const double* weights, int* first, int* count) {
  return guarded([&] {
    require_argument(first && count, "a pointer is null");
    const Step& inside = live(step).step;
    if (batches) shards = batches->batches.shards();
    require_argument(shards > 0, "there are no shards");
    const auto all = static_cast<std::size_t>(shards);
    const auto mine = weights   ? inside.shards(std::span(weights, all))
                      : batches ? inside.shards(batches->batches)
                                : inside.shards(shards);
    *count = static_cast<int>(mine.size());
    *first = mine.empty() ? 0 : mine.front();
  });
}

ddprun_status ddprun_step_begin_shard(ddprun_step* step, int shard, const char* content,
                                      int* skipped) {
  return guarded([&] {
    require_argument(skipped, "a pointer is null");
    *skipped = live(step).step.begin_shard(shard, content ? content : "") ? 0 : 1;
  });
}
int ddprun_step_skips(const ddprun_step* step, int shard) {
  return answer(-1, [&] { return live(step).step.skips(shard) ? 1 : 0; });
}
ddprun_status ddprun_step_samples(ddprun_step* step, const ddprun_batches* batches, int shard,
                                  const ddprun_sample** samples, size_t* count) {
  return guarded([&] {
    thread_local std::vector<ddprun_sample> kept;
    lend_samples(live(step).step.samples(live(batches).batches, shard), kept, samples, count);
  });
}

ddprun_status ddprun_step_audits(ddprun_step* step, const int32_t** shards, size_t* count) {
  return guarded([&] {
    require_argument(shards && count, "a pointer is null");
    thread_local std::vector<std::int32_t> kept;
    const std::vector<int> found = live(step).step.audits();
    kept.assign(found.begin(), found.end());
    *shards = kept.data();
    *count = kept.size();
  });
}
int ddprun_step_is_audited(const ddprun_step* step, int shard) {
  return answer(-1, [&] { return live(step).step.is_audited(shard) ? 1 : 0; });
}
ddprun_status ddprun_step_audit(ddprun_step* step, int shard, uint64_t hash) {
  return guarded([&] { live(step).step.audit(shard, hash); });
}

ddprun_status ddprun_step_capture(ddprun_step* step, int shard, const char* why, uint64_t hash) {
  return guarded([&] {
    require_argument(why, "the text is null");
    live(step).step.capture(shard, why, hash);
  });
}

ddprun_status ddprun_step_commit(ddprun_step* step, ddprun_apply apply, void* user) {
  return guarded_functions([&] {
    live(step).step.commit([&] {
      if (apply) require_well(apply(user));
    });
  });
}

ddprun_status ddprun_step_reduce(ddprun_step* step, ddprun_sums* sums, float* const* gradients,
                                 double divide_by, int64_t note, ddprun_sum_result* result) {
  return guarded([&] {
    (void)struct_of(result);  // Before anything is communicated.
    GradientSums& inside = live(sums).sums;
    const auto arrays = spans_of(*sums, gradients);
    give_sum(live(step).step.reduce(inside, arrays, {.divide_by = divide_by, .note = note}),
             result);
  });
}

ddprun_status ddprun_step_vote(ddprun_step* step, int32_t* vote) {
  return guarded([&] {
    require_argument(vote, "a pointer is null");
    *vote = live(step).step.vote();
  });
}

ddprun_status ddprun_step_voted(ddprun_step* step, int leave) {
  return guarded([&] { live(step).step.voted(leave != 0); });
}

}  // extern "C"
