#include "ddprun/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "worker_sdk/training/gradient_math.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse_scale(const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = "GradScaler"}, text);
}

void check_scale(double scale) {
  if (!(scale > 0) || scale > std::numeric_limits<float>::max()) {
    refuse_scale("a scale of " + std::to_string(scale) + " is not a positive f32");
  }
}

void check(const GradScalerOptions& o) {
  check_scale(o.init_scale);
  if (!(o.growth_factor > 1)) refuse_scale("growth_factor must be above 1");
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1)) {
    refuse_scale("backoff_factor must be between 0 and 1");
  }
  if (o.growth_interval < 1) refuse_scale("growth_interval must be positive");
}

void check_gradients(std::span<const Buffer> gradients) {
  for (const Buffer& g : gradients) {
    if (!is_floating(g.type) || g.type == DataType::f16) {
      refuse_scale(std::string("gradients of type ") + name_of(g.type) + " cannot be unscaled");
    }
    if (!g.data && g.count > 0) refuse_scale("the array of a gradient is null");
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  check(options);
  state_.scale = options.init_scale;
}

bool GradScaler::unscale(std::span<const Buffer> gradients) {
  if (!options_.enabled) return true;
  check_gradients(gradients);
  // As PyTorch computes it, in f32.
  const auto inverse = static_cast<float>(1 / state_.scale);
  bool finite = true;
  for (const Buffer& g : gradients) {
    finite = worker_sdk::all_finite(g) && finite;
    worker_sdk::multiply(g, inverse);
  }
  unscaled(finite);
  return finite;
}

void GradScaler::unscaled(bool finite) noexcept {
  unscaled_ = true;
  found_inf_ = found_inf_ || !finite;
}

bool GradScaler::unscale(ProcessGroup& group, std::span<const Buffer> part) {
  if (!options_.enabled) return true;
  std::int32_t finite = unscale(part) ? 1 : 0;
  group.all_reduce(buffer(&finite, 1), ReduceOp::min, {.on_host = true});
  found_inf_ = found_inf_ || finite == 0;
  return finite != 0;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (!unscaled_) refuse_scale("update() before any unscale() of this iteration");
  if (found_inf_) {
    const auto less = static_cast<float>(state_.scale * options_.backoff_factor);
    state_.scale = std::max(less, std::numeric_limits<float>::min());
    state_.growth_tracker = 0;
  } else if (++state_.growth_tracker == options_.growth_interval) {
    const auto grown = static_cast<float>(state_.scale * options_.growth_factor);
    if (std::isfinite(grown)) state_.scale = grown;
    state_.growth_tracker = 0;
  }
  unscaled_ = found_inf_ = false;
}

void GradScaler::set_scale(double scale) {
  check_scale(scale);
  state_.scale = static_cast<float>(scale);
  unscaled_ = found_inf_ = false;
}

void GradScaler::load(const GradScalerState& state) {
  check_scale(state.scale);
  if (state.growth_tracker < 0) refuse_scale("growth_tracker is negative");
  state_ = state;
  unscaled_ = found_inf_ = false;
}

}  // namespace ddprun
