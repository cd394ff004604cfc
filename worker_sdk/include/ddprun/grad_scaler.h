#pragma once
// torch.amp.GradScaler: keeps small gradients of half-precision passes from vanishing. The loss is
// multiplied by scale() before backward, gradients divided by it after; a step whose gradients
// overflowed is left out, and the scale halved.
//
//   ddprun::GradScaler scaler;
//   ... backward of loss * scaler.scale(); ddp.finish_backward(); ...
//   scaler.unscale(gradients);
//   if (scaler.may_step()) optimizer_step();
//   scaler.update();
//
// Averaged gradients carry an infinity of any rank to all, so ranks agree by themselves; where each
// rank holds a part of the gradients, call unscale(group, part). libtorch users have
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
  bool enabled = true;  ///< False: scale() is 1, unscale() does nothing, every step may be taken.
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

  /// Divides the gradients (f32, f64 or bf16, of the host) by the scale, in place, and notes
  /// whether any was infinite or not a number. Once between two update(), for all gradients or
  /// for those of one optimizer after the other. Throws Error(bad_argument) for gradients of f16,
  /// as PyTorch does: divided, they would vanish after all. Returns whether these are finite.
  bool unscale(std::span<const Buffer> gradients);
  /// The same, and collective: an overflow on any rank counts on all. One all_reduce of 4 bytes.
  bool unscale(ProcessGroup& group, std::span<const Buffer> part);

  /// The caller has divided gradients by scale() itself, such as those of a GPU; `finite`: all of
  /// them were. Counts as unscale().
  void unscaled(bool finite) noexcept;

  /// False if gradients seen since the last update() overflowed.
  bool may_step() const noexcept { return !found_inf_; }

  /// At the end of each iteration. Throws Error(bad_argument) if nothing was unscaled in it.
  void update();
  void set_scale(double scale);  ///< As update(new_scale) of PyTorch's.

  const GradScalerState& state() const noexcept { return state_; }
  void load(const GradScalerState& state);  ///< Throws Error(bad_argument).

 private:
  GradScalerOptions options_;
  GradScalerState state_;
  bool unscaled_ = false;
  bool found_inf_ = false;
};

}  // namespace ddprun
