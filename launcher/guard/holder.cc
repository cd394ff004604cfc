#include "launcher/guard/holder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <string>

#include "agent/process/kept_images.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/own_process.h"

namespace ddprun::launcher {
namespace {

constexpr int kReadyEnd = agent::kHolderFile + 1;  // A pipe, closed once the holder can be found.
constexpr int kReadyLimitMs = 5000;
constexpr std::time_t kLongest = 60;  // Between two looks at the time, which runs may change.

// In the child. A descriptor may have the number of another's place.
void become_holder(const std::string& program, int file, int ready) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int high_file = ::fcntl(file, F_DUPFD_CLOEXEC, kReadyEnd + 1);
  const int high_ready = ::fcntl(ready, F_DUPFD_CLOEXEC, kReadyEnd + 1);
  for (int stream = 0; stream <= 2; ++stream) ::dup2(null, stream);
  ::dup2(high_file, agent::kHolderFile);
  ::dup2(high_ready, kReadyEnd);
  close_from(kReadyEnd + 1);
  ::setsid();
  if (::chdir("/") != 0) ::_exit(kExitFailed);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const std::string flag(kHolderFlag);
  const char* const argv[] = {"ddprun", flag.c_str(), nullptr};
  const char* const environment[] = {nullptr};
  ::execve(program.c_str(), const_cast<char* const*>(argv), const_cast<char* const*>(environment));
  ::_exit(kExitFailed);
}

// It is worth the least.
void offer_to_oom_killer() {
  const UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  (void)!::write(score.get(), "1000", 4);
}

}  // namespace

Result<int> start_holder(const UniqueFd& file) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_failure("making a pipe");
  const UniqueFd ready(ends[0]);
  UniqueFd other(ends[1]);
  const std::string program = own_program();
  const pid_t pid = ::fork();
  if (pid < 0) return errno_failure("starting a process that keeps the fork server");
  if (pid == 0) become_holder(program, file.get(), other.get());
  other.reset();
  pollfd ends_when_ready{ready.get(), POLLIN, 0};
  char byte = 0;
  const bool is_ready =
      ::poll(&ends_when_ready, 1, kReadyLimitMs) > 0 && ::read(ready.get(), &byte, 1) == 1;
  if (is_ready) return static_cast<int>(pid);
  return Failure{Errc::kPeerSilent, "the process that was to keep the fork server has ended"};
}

int run_holder() {
  const UniqueFd file(agent::kHolderFile);
  UniqueFd ready(kReadyEnd);
  ::prctl(PR_SET_NAME, agent::kHolderName);
  offer_to_oom_killer();
  sigset_t look;
  ::sigemptyset(&look);
  ::sigaddset(&look, SIGUSR1);  // Look at the time again.
  ::sigprocmask(SIG_BLOCK, &look, nullptr);
  if (!agent::is_sealed(file.get()) || ::write(ready.get(), "r", 1) != 1) return kExitUsage;
  ready.reset();
  for (;;) {
    std::time_t left = agent::kept_until(file.get()) - std::time(nullptr);
    if (left <= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return kExitOk;
    if (left <= 0) left = kLongest;  // A run uses it.
    const timespec pause{.tv_sec = std::min(left, kLongest), .tv_nsec = 0};
    ::sigtimedwait(&look, nullptr, &pause);
  }
}

}  // namespace ddprun::launcher
