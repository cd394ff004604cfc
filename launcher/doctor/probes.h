#pragma once
// Gathers the facts of this node. Each subject's probe runs in a process of its own, which is
// killed when its time is over: a folder of a server that is gone, or a GPU that hangs, costs no
// more than that. Judges nothing. Called by doctor.cc and by --preflight.

#include "launcher/doctor/node_facts.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

enum class Depth { kFast, kFull };

// Runs the probes of this depth, all at once except those that want to be alone. If a probe fails,
// the facts hold the reason under its name.
Facts gather_facts_of_node(Depth depth, const ProbeRequest& request);

}  // namespace ddprun::doctor
