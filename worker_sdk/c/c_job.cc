// ddprun/c/c_elastic.h: jobs whose ranks come and go. What a function of the program returns
// becomes the exception that a function of C++ would throw.

#include <cstddef>

#include "ddprun/elastic/job.h"
#include "worker_sdk/c/c_handles.h"

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

// Before check_every.
template <>
constexpr std::size_t ddprun::worker_sdk::kFirstSize<ddprun_job_options> =
    offsetof(ddprun_job_options, check_every);

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

// As guarded(), where functions of the program run.
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
    *job = new ddprun_job{.job = Job(JobOptions{.init = init_options_of(given.init),
                                                .skip_poison = given.skip_poison != 0,
                                                .min_world = given.min_world,
                                                .check_every = given.check_every})};
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
                    c.lost.count()});
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

ddprun_status ddprun_step_commit(ddprun_step* step, ddprun_apply apply, void* user) {
  return guarded_functions([&] {
    live(step).step.commit([&] {
      if (apply) require_well(apply(user));
    });
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
