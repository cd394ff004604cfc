#pragma once
// torch.amp.GradScaler: prevents underflow of small gradients in half-precision passes. The program
// multiplies the loss by scale() before backward and divides gradients by it afterwards. A step
// whose gradients overflowed is skipped, and the scale is halved.
//
//   ddprun::GradScaler scaler;
//   ... backward of loss * scaler.scale(); ddp.finish_backward(); ...
//   scaler.unscale(gradients);
//   if (scaler.may_step()) optimizer_step();
//   scaler.update();
//
// Averaging propagates an infinity from any rank to all, so ranks agree without communication. If
// each rank holds a part of the gradients, call unscale(group, part). For libtorch there is
// ddprun::torch::GradScaler.

#include "ddprun/cxx20.h"

#include <span>

#include "ddprun/process_group.h"
#include "ddprun/types.h"

namespace ddprun {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     ///< Above 1; applied after growth_interval good steps in a row.
  double backoff_factor = 0.5;  ///< Between 0 and 1; applied after a step that overflowed.
  int growth_interval = 2000;
  bool enabled = true;  ///< If false, scale() is 1, unscale() has no effect, no step is skipped.
};

/// For checkpoints.
struct GradScalerState {
  double scale = 65536;
  int growth_tracker = 0;  ///< Good steps since the scale last changed.
};

/// Not thread-safe.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});  ///< Throws Error(bad_argument).

  double scale() const noexcept { return options_.enabled ? state_.scale : 1; }

  /// Divides the gradients (f32, f64 or bf16, in host memory) by the scale, in place, and records
  /// whether any was infinite or NaN. Called once between two calls of update(), for all gradients
  /// or for each optimizer's in turn. Throws Error(bad_argument) for f16 gradients, as PyTorch
  /// does: the division would make them underflow. Returns true if all are finite.
  bool unscale(std::span<const Buffer> gradients);
  /// The same, collective: an overflow on any rank counts on all ranks. One all_reduce of 4 bytes.
  bool unscale(ProcessGroup& group, std::span<const Buffer> part);

  /// Replaces unscale() if the caller has divided the gradients by scale(), such as those of a GPU.
  /// `finite`: true if all were finite.
  void unscaled(bool finite) noexcept;

  /// False if gradients seen since the last update() overflowed.
  bool may_step() const noexcept { return !found_inf_; }

  /// Ends an iteration. Throws Error(bad_argument) if no gradient was unscaled in the iteration.
  void update();
  void set_scale(double scale);  ///< As update(new_scale) in PyTorch.

  const GradScalerState& state() const noexcept { return state_; }
  void load(const GradScalerState& state);  ///< Throws Error(bad_argument).

 private:
  GradScalerOptions options_;
  GradScalerState state_;
  bool unscaled_ = false;
  bool found_inf_ = false;
};

}  // namespace ddprun
