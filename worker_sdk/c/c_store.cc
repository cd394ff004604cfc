// ddprun/c/c_store.h: the job's store.

#include "common/system/own_process.h"
#include "worker_sdk/c/c_handles.h"
#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/timer/timer_shell.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

Store& store_of(ddprun_group* group, const char* key) {
  require_argument(key, "the key is null");
  return live(group).group.store();
}

std::vector<std::string> keys_of(const char* const* keys, std::size_t count) {
  require_argument(keys || count == 0, "the keys are null");
  std::vector<std::string> result;
  for (std::size_t i = 0; i < count; ++i) {
    require_argument(keys[i], "a key is null");
    result.emplace_back(keys[i]);
  }
  return result;
}

}  // namespace

extern "C" {

ddprun_status ddprun_store_set(ddprun_group* group, const char* key, const void* value,
                               size_t bytes) {
  return guarded([&] {
    require_argument(value || bytes == 0, "the value is null");
    store_of(group, key).set(key, {static_cast<const char*>(value), bytes});
  });
}

ddprun_status ddprun_store_get(ddprun_group* group, const char* key, int64_t timeout_ms,
                               const void** value, size_t* bytes) {
  return guarded([&] {
    thread_local std::string kept;
    require_argument(value && bytes, "a pointer is null");
    kept = store_of(group, key).get(key, std::chrono::milliseconds(timeout_ms));
    *value = kept.c_str();
    *bytes = kept.size();
  });
}

ddprun_status ddprun_store_add(ddprun_group* group, const char* key, int64_t delta, int64_t* sum) {
  return guarded([&] {
    require_argument(sum, "a pointer is null");
    *sum = store_of(group, key).add(key, delta);
  });
}

ddprun_status ddprun_store_check(ddprun_group* group, const char* const* keys, size_t count,
                                 int* exist) {
  return guarded([&] {
    require_argument(exist, "a pointer is null");
    *exist = live(group).group.store().check(keys_of(keys, count)) ? 1 : 0;
  });
}

ddprun_status ddprun_store_wait(ddprun_group* group, const char* const* keys, size_t count,
                                int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.store().wait(keys_of(keys, count), std::chrono::milliseconds(timeout_ms));
  });
}

ddprun_status ddprun_store_erase(ddprun_group* group, const char* key, int* existed) {
  return guarded([&] {
    const bool found = store_of(group, key).erase(key);
    if (existed) *existed = found ? 1 : 0;
  });
}

}  // extern "C"

// ddprun/c/c_timer.h: steps that another library synchronises.

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_timer {
  std::unique_ptr<ForeignStreams> streams;  // Once the program computes on a GPU.
  ForeignSteps steps;
  bool joined = false;
};

extern "C" {

ddprun_status ddprun_timer_create(ddprun_timer** timer) {
  return guarded([&] {
    require_argument(timer, "the pointer for the handle is null");
    *timer = nullptr;
    *timer = new ddprun_timer{nullptr, ForeignSteps(environment_variable("DDPRUN_PROGRESS"))};
  });
}

ddprun_status ddprun_timer_join(ddprun_timer* timer, const ddprun_init_options* options) {
  return guarded([&] {
    require_argument(!live(timer).joined, "the timer has met the others already");
    timer->steps.join(init_options_of(options));
    timer->joined = true;
  });
}

ddprun_status ddprun_timer_use_stream(ddprun_timer* timer, int32_t device, void* stream) {
  return guarded([&] {
    require_argument(device >= 0, "the device is less than 0");
    ddprun_timer& mine = live(timer);
    if (!mine.streams) mine.streams = std::make_unique<ForeignStreams>();
    mine.streams->use_device(device);
    mine.steps.use_stream(*mine.streams, stream);
  });
}

ddprun_status ddprun_timer_enter(ddprun_timer* timer, ddprun_phase phase) {
  return guarded([&] {
    require_argument(phase >= 0 && phase <= static_cast<int>(ForeignSteps::kLastPhase),
                     "there is no such phase");
    live(timer).steps.enter(static_cast<ForeignSteps::Phase>(phase));
  });
}

ddprun_status ddprun_timer_end_step(ddprun_timer* timer, size_t bytes) {
  return guarded([&] { live(timer).steps.end_step(bytes); });
}

ddprun_status ddprun_timer_checkpoint(ddprun_timer* timer, int64_t stall_ns) {
  return guarded([&] {
    require_argument(stall_ns >= 0, "the time is less than 0");
    live(timer).steps.stood_still(std::chrono::nanoseconds(stall_ns));
  });
}

ddprun_status ddprun_timer_saved(ddprun_timer* timer, int64_t ago_ns) {
  return guarded([&] {
    require_argument(ago_ns >= 0, "the time is less than 0");
    live(timer).steps.saved(Clock::now() - std::chrono::nanoseconds(ago_ns));
  });
}

void ddprun_timer_destroy(ddprun_timer* timer) { delete timer; }

}  // extern "C"
