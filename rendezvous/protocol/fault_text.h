#pragma once
// A few words for how a worker failed, for headlines: the verdict's picture, the report. Pure.

#include <string>

#include "common/worker_death.h"

namespace ddprun::rendezvous {

// "CUDA out of memory"; of a kind without words of its own "exited with 7", as how_it_ended().
std::string what_happened(const WorkerDeath& death);

}  // namespace ddprun::rendezvous
