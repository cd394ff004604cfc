#pragma once
// How many workers a node would get, by its facts: GPUs are counted by the probe, which may be
// given up, and never here.

#include "launcher/doctor/node_facts.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

int workers_of(const WorkerCount& wanted, const doctor::Facts& facts);

}  // namespace ddprun::launcher
