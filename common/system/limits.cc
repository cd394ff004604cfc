#include "common/system/limits.h"

#include <sys/resource.h>

#include <cerrno>

namespace ddprun {
namespace {

constexpr int kDescriptorsAWorker = 5;  // Two pipes, the pidfd, the page of its progress, its link.

std::uint64_t soft(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

void raise(__rlimit_resource resource, std::uint64_t wanted) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return;
  const rlimit more{wanted, wanted};
  if (wanted > limit.rlim_max && ::setrlimit(resource, &more) == 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(resource, &limit);  // A shortage shows when more is needed.
}

void set_soft(int pid, __rlimit_resource resource, std::uint64_t soft) {
  rlimit limit{};
  if (::prlimit(pid, resource, nullptr, &limit) != 0) return;
  limit.rlim_cur = soft == kUnlimited ? RLIM_INFINITY : soft;
  (void)::prlimit(pid, resource, &limit, nullptr);
}

}  // namespace

Limits current_limits() { return {soft(RLIMIT_NOFILE), soft(RLIMIT_NPROC)}; }

Limits raise_soft_limits(std::uint64_t descriptors) {
  const Limits before = current_limits();
  raise(RLIMIT_NOFILE, descriptors);
  raise(RLIMIT_NPROC, 0);
  return before;
}

void set_soft_limits(int pid, const Limits& limits) {
  set_soft(pid, RLIMIT_NOFILE, limits.descriptors);
  set_soft(pid, RLIMIT_NPROC, limits.processes);
}

std::string what_is_short(int error, const Limits& limits, int workers) {
  const std::string count = std::to_string(workers);
  if (error == ENFILE) return "; this machine allows no more (fs.file-max)";
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
