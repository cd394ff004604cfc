#include "agent/node/start_failure.h"

#include <cerrno>

#include "agent/process/cgroup_values.h"
#include "common/exit_status.h"

namespace ddprun::agent {
namespace {

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

WorkerDeath start_failure(const Failure& why, const Limits& limits, int workers,
                          std::optional<std::int64_t> tasks) {
  const bool of_the_system = why.code.category() == boost::system::system_category();
  const int error = of_the_system ? why.code.value() : 0;
  WorkerDeath death;
  death.fault = fault_of(error);
  death.exit_code = death.fault == Fault::kCannotStart ? kExitCannotStart : kExitFailed;
  const std::string by_cgroup = too_few_tasks(error, limits, tasks);
  death.detail =
      to_string(why) + (by_cgroup.empty() ? what_is_short(error, limits, workers) : by_cgroup);
  return death;
}

}  // namespace ddprun::agent
