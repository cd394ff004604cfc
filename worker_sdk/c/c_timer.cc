// ddprun/c/c_timer.h: steps that another library synchronises.

#include "common/system/variable.h"
#include "worker_sdk/c/c_handles.h"
#include "worker_sdk/gpu/gpu_event.h"
#include "worker_sdk/timer/foreign_steps.h"

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

void ddprun_timer_destroy(ddprun_timer* timer) { delete timer; }

}  // extern "C"
