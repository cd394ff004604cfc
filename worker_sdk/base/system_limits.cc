#include "worker_sdk/base/system_limits.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace ddprun::worker_sdk {
namespace {

// A limit of this process, as `ulimit -S` shows it.
template <class Resource>
std::string soft_limit(Resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "any number of";
  return std::to_string(limit.rlim_cur);
}

std::string limit_behind(int error) {
  switch (error) {
    case EMFILE:
      return "; this process may have " + soft_limit(RLIMIT_NOFILE) + " descriptors (ulimit -n)";
    case ENFILE: return "; all processes of this machine together have too many open (fs.file-max)";
    case EAGAIN:
      return "; its user may have " + soft_limit(RLIMIT_NPROC) +
             " threads and processes (ulimit -u), its cgroup as many as pids.max, and each needs "
             "memory for its stack (ulimit -s, ulimit -v)";
    default: return "";
  }
}

}  // namespace

std::string refusal(const std::string& call, int error) {
  return call + ": " + std::strerror(error) + limit_behind(error);
}

bool is_shortage(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

Error as_error(const std::exception& failure, Error::Where where) {
  if (const auto* ours = dynamic_cast<const Error*>(&failure)) return *ours;
  if (dynamic_cast<const std::bad_alloc*>(&failure)) {
    return {ErrorKind::system, std::move(where), "this process has no memory left"};
  }
  std::string text = failure.what();
  if (const auto* system = dynamic_cast<const std::system_error*>(&failure)) {
    const std::error_code code = system->code();
    const bool is_errno =
        code.category() == std::generic_category() || code.category() == std::system_category();
    if (is_errno) text += limit_behind(code.value());
  }
  return {ErrorKind::system, std::move(where), text};
}

}  // namespace ddprun::worker_sdk
