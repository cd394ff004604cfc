#pragma once
// The far end of `doctor --hosts`: gathers the facts of its node, then measures what it is asked
// to, until its input ends. Each answer is one line of facts. Requests are frames, like the signals
// of a run; requests.h has their words.

#include <cstdint>

#include "launcher/checkup/doctor_options.h"
#include "launcher/hosts/control_stdin.h"

namespace ddprun::launcher {

// The time of day in ns since 1970, by the library's clock, not the kernel's: that is what programs
// read.
std::int64_t wall_ns();

int serve_far_end(const DoctorOptions& options, ControlStdin& control);

}  // namespace ddprun::launcher
