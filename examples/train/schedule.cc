#include "examples/train/schedule.h"

#include <cmath>
#include <numbers>

namespace examples {

double scaled_lr(double lr, LrScale scale, int world_size) {
  switch (scale) {
    case LrScale::none: return lr;
    case LrScale::linear: return lr * world_size;
    case LrScale::sqrt: return lr * std::sqrt(static_cast<double>(world_size));
  }
  return lr;
}

// In PyTorch's order of operations, for the same bits: LambdaLR multiplies by the result of its
// function; CosineAnnealingLR's closed form is the last line.
double Schedule::at(std::int64_t step) const {
  if (step < warmup) {
    return lr * (static_cast<double>(step + 1) / static_cast<double>(warmup + 1));
  }
  if (decay == Decay::none) return lr;
  const auto t = static_cast<double>(step - warmup);
  const auto t_max = static_cast<double>(steps - warmup);
  return min_lr + (lr - min_lr) * (1 + std::cos(std::numbers::pi * t / t_max)) / 2;
}

}  // namespace examples
