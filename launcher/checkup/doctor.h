#pragma once
// `ddprun doctor`: gathers facts here, or on each of --hosts and between them, has them judged and
// shows what came of it. Called by main.cc.

#include "launcher/checkup/doctor_options.h"
#include "launcher/hosts/control_stdin.h"

namespace ddprun::launcher {

// `argv` begins with "doctor"; `control` is there for a far end of --hosts. Returns the exit code.
int run_doctor(int argc, const char* const* argv, const Environment& environment,
               ControlStdin* control);

}  // namespace ddprun::launcher
