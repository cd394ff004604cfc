#include "agent/node/start_failure.h"

#include <cerrno>

namespace ddprun::agent {
namespace {

using rendezvous::Fault;

constexpr int kExitCannotStart = 127;  // As a shell has it, of a program that it cannot run.
constexpr int kExitShort = 1;          // The program is not to blame.

Fault fault_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return Fault::kNoDescriptors;
    case EAGAIN: return Fault::kNoProcesses;
    case ENOMEM: return Fault::kNoMemory;
    default: return Fault::kCannotStart;
  }
}

}  // namespace

rendezvous::WorkerDeath start_failure(const Failure& why, const Limits& limits, int workers) {
  const bool of_the_system = why.code.category() == boost::system::system_category();
  const int error = of_the_system ? why.code.value() : 0;
  rendezvous::WorkerDeath death;
  death.fault = fault_of(error);
  death.exit_code = death.fault == Fault::kCannotStart ? kExitCannotStart : kExitShort;
  death.detail = to_string(why) + what_is_short(error, limits, workers);
  return death;
}

}  // namespace ddprun::agent
