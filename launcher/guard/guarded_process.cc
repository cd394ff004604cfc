#include "launcher/guard/guarded_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "agent/process/cgroup.h"
#include "common/exit_status.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"

namespace ddprun::launcher {
namespace {

void close_on_exec_all_but(const std::vector<int>& kept) {
  close_on_exec_from(3);
  for (const int fd : kept) ::fcntl(fd, F_SETFD, 0);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (const std::string& string : strings) list.push_back(const_cast<char*>(string.c_str()));
  list.push_back(nullptr);
  return list;
}

int execute(const GuardedChild& child) {
  std::vector<char*> argv = pointers(child.argv), environment = pointers(child.environment);
  ::signal(SIGPIPE, SIG_DFL);
  close_on_exec_all_but(child.inherited_fds);
  ::execve(argv[0], argv.data(), environment.data());
  std::fprintf(stderr, "ddprun: error: starting %s: execve %s: %s\n", child.name.c_str(), argv[0],
               std::strerror(errno));
  return kExitCannotStart;
}

int run_body(const GuardedChild& child) {
  try {
    return child.body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddprun: error: %s: %s\n", child.name.c_str(), error.what());
    return EXIT_FAILURE;
  }
}

// Handlers of the program we were forked from must not run in the child; what it ignores, we
// ignore.
void drop_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || stays_ignored(number)) continue;
    ::signal(number, SIG_DFL);
  }
}

// Runs in the child.
int become(const GuardedChild& child, const GuardianSetup& setup, pid_t guardian) {
  ::setpgid(0, 0);  // A terminal's Ctrl-C reaches the guardian alone, which passes it on once.
  ::signal(SIGTTOU, SIG_IGN);
  if (child.kind == GuardedChild::Kind::kService) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != guardian) return kExitCannotStart;
  }
  for (const int fd : setup.own_fds) ::close(fd);
  drop_handlers();
  if (child.kind == GuardedChild::Kind::kService) {
    for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  }
  if (!child.takes_signals) ::sigprocmask(SIG_SETMASK, &setup.mask_before, nullptr);
  const int code = child.body ? run_body(child) : execute(child);
  std::fflush(nullptr);
  return code;
}

}  // namespace

Result<GuardedProcess> start_guarded(const GuardedChild& child, const GuardianSetup& setup) {
  std::fflush(nullptr);  // Or the child would write the buffer again.
  const pid_t guardian = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    const Limits limits = current_limits();
    const std::string by_cgroup = agent::too_few_tasks(error, limits, agent::fewest_tasks());
    const std::string hint = by_cgroup.empty() ? what_is_short(error, limits, 1) : by_cgroup;
    errno = error;
    return errno_failure("starting " + child.name + hint);
  }
  if (pid == 0) ::_exit(become(child, setup, guardian));
  // No other process can reap it, so the number is still its own.
  GuardedProcess process{pid, open_pidfd(pid)};
  if (process.pidfd || !has_pidfds()) return process;
  Failure failure = errno_failure("watching " + child.name);
  ::kill(pid, SIGKILL);
  return failure;
}

}  // namespace ddprun::launcher
