#pragma once
// The guardian's children: how one is started, which there are, and which signals are passed on to
// them.

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <optional>
#include <vector>

#include "common/error.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/system/signals.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/guardian_policy.h"

namespace ddprun::launcher {

// Starts one child of the guardian. Separate from it because everything here runs between fork and
// exec.
struct GuardedProcess {
  int pid = 0;
  UniqueFd pidfd;  // None if !has_pidfds(): SIGCHLD reports its end.
};

// The guardian's own settings, which the child must undo.
struct GuardianSetup {
  sigset_t mask_before{};
  std::vector<int> own_fds;  // Closed in a forked child.
};

// Signals must be blocked. The child itself reports a failing exec, which shows as
// kExitCannotStart.
Result<GuardedProcess> start_guarded(const GuardedChild& child, const GuardianSetup& setup);

// The guardian's signals: blocked for as long as it lives, and read from a descriptor instead. Used
// by guardian.cc; hosts_run.cc reads its own as they are read here.
inline constexpr std::array kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                          SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// Whether a signal that is ignored at our start stays ignored: a hang-up under nohup, and signals
// without a meaning for the run. SIGINT and SIGQUIT are ignored for each background job of a
// script, which must be possible to end all the same.
inline bool stays_ignored(int signal) {
  if (signal == SIGINT || signal == SIGQUIT || signal == SIGTERM) return false;
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// The value of a queued SIGINT that means Origin::kNow.
inline constexpr int kNowValue = 0x6e6f77;

struct ReceivedSignal {
  int signal = 0;  // 0: none is waiting.
  Origin origin = Origin::kProcess;
};

inline ReceivedSignal read_signal(int signalfd) {
  signalfd_siginfo info{};
  if (::read(signalfd, &info, sizeof info) != sizeof info) return {};
  ReceivedSignal received{.signal = static_cast<int>(info.ssi_signo)};
  if (info.ssi_code == SI_KERNEL) received.origin = Origin::kTerminal;
  if (info.ssi_code == SI_QUEUE && info.ssi_int == kNowValue) received.origin = Origin::kNow;
  return received;
}

// Blocks what the guardian handles, for as long as it lives, and reads it from a descriptor
// instead.
class GuardianSignals {
 public:
  explicit GuardianSignals(const std::vector<int>& also_forwarded) {
    std::vector<int> forwarded(kForwarded.begin(), kForwarded.end());
    forwarded.insert(forwarded.end(), also_forwarded.begin(), also_forwarded.end());
    sigset_t handled;
    ::sigemptyset(&handled);
    ::sigaddset(&handled, SIGCHLD);
    for (const int signal : forwarded) {
      if (!stays_ignored(signal)) ::sigaddset(&handled, signal);
    }
    chld_before_ = ::signal(SIGCHLD, SIG_DFL);  // Ignored, it would hide how children end.
    sigset_t blocked = handled;
    ::sigaddset(&blocked, passed_on_signal());  // For agents, which inherit this.
    ::sigprocmask(SIG_BLOCK, &blocked, &before_);
    pipe_before_ = ::signal(SIGPIPE, SIG_IGN);
    fd_ = UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) refused_ = refused_call("receiving signals", "signalfd", "Linux 2.6.27");
  }
  ~GuardianSignals() {
    ::signal(SIGPIPE, pipe_before_);
    ::signal(SIGCHLD, chld_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return fd_.get(); }
  const std::optional<Failure>& refused() const { return refused_; }  // If set, there is no fd().
  const sigset_t& mask_before() const { return before_; }

  ReceivedSignal next() const { return read_signal(fd_.get()); }

 private:
  sigset_t before_{};
  sighandler_t pipe_before_ = SIG_DFL;
  sighandler_t chld_before_ = SIG_DFL;
  UniqueFd fd_;
  std::optional<Failure> refused_;
};

// The guardian's children, and what is sent to them. Only guardian.cc uses this.
struct Child {
  const GuardedChild* plan;
  std::optional<GuardedProcess> process;
  RespawnBudget budget;
  std::optional<TimePoint> start_at;

  bool is_agent() const { return plan->kind == GuardedChild::Kind::kAgent; }
  std::optional<int> decided() const {
    return plan->decided ? plan->decided->read() : std::nullopt;
  }
};

// SIGTSTP and SIGCONT stop and continue a process by themselves.
inline void signal_agents(const std::vector<Child>& children, int signal) {
  const bool may_queue = signal != SIGTSTP && signal != SIGCONT;
  for (const Child& child : children) {
    if (!child.is_agent() || !child.process) continue;
    const pid_t pid = child.process->pid;
    const bool queues = may_queue && child.plan->knows_senders;
    if (queues && ::sigqueue(pid, passed_on_signal(), {.sival_int = signal}) == 0) continue;
    ::kill(pid, signal);  // Or too many signals are queued for this user.
  }
}

// Passes a second Ctrl-C to children that have nodes elsewhere. False: there are none.
inline bool pass_now_on(const std::vector<Child>& children) {
  bool any = false;
  for (const Child& child : children) {
    if (!child.process || !child.plan->passes_now_on) continue;
    ::sigqueue(child.process->pid, SIGINT, {.sival_int = kNowValue});
    any = true;
  }
  return any;
}

}  // namespace ddprun::launcher
