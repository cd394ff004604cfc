#pragma once
// How the survivors of a group agree through the store who they are, though nobody knows who will
// come: each says that it is there and whom it takes for lost; the first that knows of all, or
// whose patience is over, settles it for all. Used by process_group_shrink.cc.

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/join/survivors.h"

namespace ddprun::worker_sdk {

struct SurvivorsWish {
  int rank = 0, size = 1;
  std::vector<int> lost;  // Rising.
  Clock::time_point give_up{};
  std::chrono::milliseconds limit{0};  // To settle on.
};

// `keys`: for this meeting alone. Throws Error: timed_out if who was to settle it has not, mismatch
// if a text is of another version.
AgreedSurvivors agree_on_survivors(Store& keys, const SurvivorsWish& wish);

}  // namespace ddprun::worker_sdk
