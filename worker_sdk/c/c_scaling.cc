// ddprun/c/c_training.h: clipping of gradients, and scaling of losses.

#include "ddprun/clip_grad_norm.h"
#include "ddprun/grad_scaler.h"
#include "worker_sdk/c/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_scaler {
  GradScaler scaler;
};

namespace {

std::vector<Buffer> buffers_of(const ddprun_buffer* arrays, std::size_t count) {
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < count; ++i) {
    const ddprun_buffer next = struct_of(arrays, i);
    buffers.push_back(buffer_of(&next));
  }
  return buffers;
}

ClipOptions clip_options_of(double norm_type, int error_if_nonfinite) {
  return {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite != 0};
}

GradScalerOptions scaler_options_of(const ddprun_scaler_options* options) {
  const auto given = options_of(options);
  GradScalerOptions wanted;
  if (given.init_scale != 0) wanted.init_scale = given.init_scale;
  if (given.growth_factor != 0) wanted.growth_factor = given.growth_factor;
  if (given.backoff_factor != 0) wanted.backoff_factor = given.backoff_factor;
  if (given.growth_interval != 0) wanted.growth_interval = given.growth_interval;
  wanted.enabled = given.disabled == 0;
  return wanted;
}

}  // namespace

extern "C" {

ddprun_status ddprun_clip_grad_norm(const ddprun_buffer* gradients, size_t count, double max_norm,
                                    double norm_type, int error_if_nonfinite, double* norm) {
  return guarded([&] {
    require_argument(norm, "a pointer is null");
    *norm = clip_grad_norm(buffers_of(gradients, count), max_norm,
                           clip_options_of(norm_type, error_if_nonfinite));
  });
}

ddprun_status ddprun_clip_grad_norm_of_parts(ddprun_group* group, const ddprun_buffer* part,
                                             size_t count, double max_norm, double norm_type,
                                             int error_if_nonfinite, double* norm) {
  return guarded([&] {
    require_argument(norm, "a pointer is null");
    *norm = clip_grad_norm(live(group).group, buffers_of(part, count), max_norm,
                           clip_options_of(norm_type, error_if_nonfinite));
  });
}

ddprun_status ddprun_scaler_create(const ddprun_scaler_options* options, ddprun_scaler** scaler) {
  return guarded([&] {
    require_argument(scaler, "the place for the handle is null");
    *scaler = nullptr;
    *scaler = new ddprun_scaler{GradScaler(scaler_options_of(options))};
  });
}

void ddprun_scaler_destroy(ddprun_scaler* scaler) { delete scaler; }

ddprun_status ddprun_scaler_scale(const ddprun_scaler* scaler, double* scale) {
  return guarded([&] {
    require_argument(scale, "a pointer is null");
    *scale = live(scaler).scaler.scale();
  });
}

ddprun_status ddprun_scaler_unscale(ddprun_scaler* scaler, ddprun_group* group,
                                    const ddprun_buffer* gradients, size_t count, int* finite) {
  return guarded([&] {
    const auto buffers = buffers_of(gradients, count);
    GradScaler& mine = live(scaler).scaler;
    const bool all = group ? mine.unscale(group->group, buffers) : mine.unscale(buffers);
    if (finite) *finite = all ? 1 : 0;
  });
}

ddprun_status ddprun_scaler_unscaled(ddprun_scaler* scaler, int finite) {
  return guarded([&] { live(scaler).scaler.unscaled(finite != 0); });
}

int ddprun_scaler_may_step(const ddprun_scaler* scaler) {
  return answer(-1, [&] { return live(scaler).scaler.may_step() ? 1 : 0; });
}

ddprun_status ddprun_scaler_update(ddprun_scaler* scaler) {
  return guarded([&] { live(scaler).scaler.update(); });
}

ddprun_status ddprun_scaler_state(const ddprun_scaler* scaler, double* scale, int* growth_tracker) {
  return guarded([&] {
    require_argument(scale && growth_tracker, "a pointer is null");
    *scale = live(scaler).scaler.state().scale;
    *growth_tracker = scaler->scaler.state().growth_tracker;
  });
}

ddprun_status ddprun_scaler_load(ddprun_scaler* scaler, double scale, int growth_tracker) {
  return guarded(
      [&] { live(scaler).scaler.load({.scale = scale, .growth_tracker = growth_tracker}); });
}

}  // extern "C"
