#pragma once
// The learning rate of each step: scaled by the number of ranks, raised while training warms up,
// then constant or falling. Pure. Used by trainer.cc.
//
// Each rate depends on the number of its step alone. A training that resumes from a checkpoint has
// nothing to restore and gets the same bits.

#include <cstdint>

namespace examples {

enum class LrScale {
  none,
  linear,  // Times the number of ranks: Goyal et al., "Accurate, Large Minibatch SGD", 2017.
  sqrt,    // Times its root: Krizhevsky, "One weird trick for parallelizing CNNs", 2014.
};

double scaled_lr(double lr, LrScale scale, int world_size);

enum class Decay {
  none,
  cosine,  // PyTorch's CosineAnnealingLR, in its closed form.
};

struct Schedule {
  double lr = 0;  // After warming up.
  Decay decay = Decay::none;
  double min_lr = 0;        // The end of the cosine, after the last step.
  std::int64_t warmup = 0;  // Steps in which the rate rises in equal parts; the next has `lr`.
  std::int64_t steps = 1;   // In the whole training, with the warm-up; more than `warmup`.

  // `step` counts from 0 over all epochs.
  double at(std::int64_t step) const;
};

}  // namespace examples
