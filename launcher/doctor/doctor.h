#pragma once
// `ddprun doctor`: gathers facts here, or on each of --hosts and between them, has them judged and
// shows what came of it. Called by main.cc.

#include <cstdint>

#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/hosts/control_stdin.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// How many workers a node would get, by its facts: GPUs are counted by the probe, which may be
// given up, and never here.
int workers_of(const WorkerCount& wanted, const doctor::Facts& facts);

// The far end of `doctor --hosts`: gathers the facts of its node, then measures what it is asked
// to, until its input ends. Each answer is one line of facts. Requests are frames, like the signals
// of a run; doctor_options.h has their words.

// The time of day in ns since 1970, by the library's clock, not the kernel's: that is what programs
// read.
std::int64_t wall_ns();

int serve_far_end(const DoctorOptions& options, ControlStdin& control);

// `argv` begins with "doctor"; `control` is there for a far end of --hosts. Returns the exit code.
int run_doctor(int argc, const char* const* argv, const Environment& environment,
               ControlStdin* control);

}  // namespace ddprun::launcher
