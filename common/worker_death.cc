#include "common/worker_death.h"

#include <csignal>
#include <cstring>

#include "common/exit_status.h"

namespace ddprun {
namespace {

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return std::to_string(signal) + (name ? " (SIG" + std::string(name) + ")" : "");
}

}  // namespace

std::string how_it_ended(const WorkerDeath& death) {
  if (death.signal != 0) return "was killed by signal " + signal_text(death.signal);
  return "exited with " + std::to_string(death.exit_code);
}

int exit_status(const WorkerDeath& death) {
  return death.signal != 0 ? exit_code_of_signal(death.signal) : death.exit_code;
}

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGABRT || signal == SIGSYS || signal == SIGTRAP;
}

bool never_ran(const WorkerDeath& death) {
  const Fault fault = death.fault;
  return death.pid == 0 && (fault == Fault::kCannotStart || fault == Fault::kNoDescriptors ||
                            fault == Fault::kNoProcesses || fault == Fault::kNoMemory);
}

bool cut_short(const WorkerDeath& death) { return death.was_failing && !is_crash(death.signal); }

}  // namespace ddprun
