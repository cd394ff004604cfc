#pragma once
// `ddprun doctor`: gathers facts here, or on each of --hosts and between them, has them judged and
// shows the report. Called by main.cc.

#include "launcher/doctor/node_facts.h"
#include "launcher/hosts/control_stdin.h"
#include "launcher/options/doctor_options.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// A fact of a far end: the workers that would be started there.
inline constexpr doctor::Whole kWorkers{"workers"};

// `argv` begins with "doctor"; `control` is present in a far end of --hosts. Returns the exit code.
int run_doctor(int argc, const char* const* argv, const Environment& environment,
               ControlStdin* control);

}  // namespace ddprun::launcher
