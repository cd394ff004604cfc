#pragma once
// `doctor --hosts`: runs a far end on each host by ssh, collects their facts, and has them measure
// what is between them. Called by doctor.cc.

#include "launcher/doctor/health_report.h"
#include "launcher/options/doctor_options.h"

namespace ddprun::launcher {

// A failure is a whole sentence. A host that cannot be reached is a finding, not a failure.
Result<doctor::HealthReport> check_hosts(const DoctorOptions& options,
                                         const Environment& environment);

}  // namespace ddprun::launcher
