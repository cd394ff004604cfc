#pragma once
// `doctor --hosts`: a far end on each host by ssh, their facts, and what is measured between them.

#include "launcher/checkup/doctor_options.h"
#include "launcher/doctor/health_report.h"

namespace ddprun::launcher {

// A failure is a whole sentence. A host that cannot be reached is a finding, not a failure.
Result<doctor::HealthReport> check_hosts(const DoctorOptions& options,
                                         const Environment& environment);

}  // namespace ddprun::launcher
