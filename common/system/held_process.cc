#include "common/system/held_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;

bool is_refused(int error) { return error == ENOSYS || error == EPERM; }

bool is_folder(const UniqueFd& process) {
  struct stat facts {};
  return ::fstat(process.get(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

// The number of the process whose folder that is; 0: not known.
int number_of(const UniqueFd& folder) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(folder.get());
  if (::readlink(link.c_str(), target, sizeof target - 1) <= 0) return 0;
  const std::string path = target;  // "/proc/4711".
  return std::atoi(path.substr(path.rfind('/') + 1).c_str());
}

// "4711 (a name) Z 1 ...": the state and, much later, the number of threads.
bool shows_end(const std::string& stat) {
  constexpr int kBetween = 16;
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return true;  // The process has gone while we read.
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state, skipped;
  int threads = 1;
  fields >> state;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> threads;
  // A dead main thread is a zombie while others live.
  return state == "X" || (state == "Z" && threads <= 1);
}

bool folder_shows_end(const UniqueFd& folder) {
  const UniqueFd file(::openat(folder.get(), "stat", O_RDONLY | O_CLOEXEC));
  if (!file) return errno == ENOENT || errno == ESRCH;
  char text[1024];
  const ssize_t n = ::read(file.get(), text, sizeof text);
  return n <= 0 || shows_end({text, static_cast<std::size_t>(n)});
}

// poll() may be interrupted by a signal to this thread, which does not concern the process.
bool is_readable_within(const UniqueFd& pidfd, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now()).count();
    pollfd entry{pidfd.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

}  // namespace

bool has_pidfds() {
  static const bool has = [] { return open_pidfd(::getpid()) || !is_refused(errno); }();
  return has;
}

UniqueFd open_pidfd(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

UniqueFd hold_process(int pid) {
  UniqueFd pidfd = open_pidfd(pid);
  if (pidfd || !is_refused(errno)) return pidfd;
  const std::string folder = "/proc/" + std::to_string(pid);
  UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held && errno == ENOENT) errno = ESRCH;
  return held;
}

bool has_ended(const UniqueFd& process) { return ends_within(process, Milliseconds(0)); }

bool ends_within(const UniqueFd& process, Milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  if (!is_folder(process)) return is_readable_within(process, until);
  while (!folder_shows_end(process)) {
    const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    ::poll(nullptr, 0, static_cast<int>(std::min(left, kLookAgain).count()));
  }
  return true;
}

bool send_signal(const UniqueFd& process, int signal) {
  if (::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0) return true;
  const bool by_number = (is_refused(errno) || errno == EBADF) && is_folder(process);
  if (!by_number) return false;
  const int pid = number_of(process);
  if (pid > 0 && ::faccessat(process.get(), "stat", F_OK, 0) == 0) return ::kill(pid, signal) == 0;
  errno = ESRCH;
  return false;
}

bool child_has_ended(int pid, const UniqueFd& pidfd) {
  if (pidfd) return has_ended(pidfd);
  siginfo_t info{};
  const int asked = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return asked != 0 ? errno == ECHILD : info.si_pid != 0;
}

}  // namespace ddprun
