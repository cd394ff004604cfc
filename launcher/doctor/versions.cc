// Who this node is, and how well its clock is kept.

#include <gnu/libc-version.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/probes.h"

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "0.0.0"
#endif

namespace ddprun::doctor {

void probe_node(const ProbeRequest&, Facts& facts) {
  utsname system{};
  if (::uname(&system) == 0) {
    facts.set(fact::kHost, std::string(system.nodename));
    facts.set(fact::kKernel, std::string(system.release) + " " + system.machine);
  }
  facts.set(fact::kVersion, std::string(DDPRUN_VERSION));
  facts.set(fact::kLibc, std::string(::gnu_get_libc_version()));
  facts.set(fact::kUser, std::int64_t{::geteuid()});
  timex time{};
  const int state = ::adjtimex(&time);
  if (state >= 0 && state != TIME_ERROR && (time.status & STA_UNSYNC) == 0) {
    facts.set(fact::kClockErrorMs, static_cast<double>(time.esterror) / 1000.0);
  }
}

}  // namespace ddprun::doctor
