#pragma once
// How many groups of this process have ended, by store and rank: the next one must not find the
// keys of those before it. Each rank counts for itself; all count the same, as all ranks of a group
// join it, and end it before they join the next.

#include <memory>
#include <string>

#include "worker_sdk/join/environment.h"

namespace ddprun::worker_sdk {

int ended_lives(const Plan& plan);

// What keys of the plan's group begin with, after the part that all groups have: nothing the first
// time, nor in a store that rank 0 hosts, which is a new one for each group.
std::string life_prefix(const Plan& plan);

// To be held by the group; its end is counted when the last reference goes.
std::shared_ptr<void> begin_life(const Plan& plan);

}  // namespace ddprun::worker_sdk
