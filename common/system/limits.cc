#include "common/system/limits.h"

#include <sys/resource.h>

#include <cerrno>

namespace ddprun {
namespace {

constexpr int kDescriptorsAWorker = 4;  // Two pipes, the pidfd, the page of its progress.

std::uint64_t soft(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

void raise(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(static_cast<__rlimit_resource>(resource), &limit);  // As far as it goes.
}

}  // namespace

Limits current_limits() { return {soft(RLIMIT_NOFILE), soft(RLIMIT_NPROC)}; }

Limits raise_soft_limits() {
  const Limits before = current_limits();
  for (const int resource : {RLIMIT_NOFILE, RLIMIT_NPROC}) raise(resource);
  return before;
}

std::string what_is_short(int error, const Limits& limits, int workers) {
  const std::string count = std::to_string(workers);
  if (error == ENFILE) return "; this machine has no more (fs.file-max)";
  if (error == EMFILE) {
    return "; ulimit -n is " + std::to_string(limits.descriptors) + ", and ddprun needs about " +
           std::to_string(kDescriptorsAWorker) + " a worker, " +
           std::to_string(kDescriptorsAWorker * workers) + " for " + count;
  }
  if (error != EAGAIN) return "";
  if (limits.processes == kUnlimited) {
    return "; the pids.max of a cgroup, or this machine's kernel.pid_max, allows no more processes";
  }
  return "; ulimit -u is " + std::to_string(limits.processes) +
         " for all processes and threads of this user, and ddprun needs 1 a worker and 3 for "
         "itself";
}

}  // namespace ddprun
