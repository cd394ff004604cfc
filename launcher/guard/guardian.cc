#include "launcher/guard/guardian.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "agent/process/cgroup.h"
#include "agent/process/roster.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "launcher/guard/guarded_process.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// SIGKILL takes longer only in uninterruptible sleep.
constexpr std::chrono::seconds kLeaveLimit{2};
// Time for nodes elsewhere to end, and for the news to arrive here.
constexpr std::chrono::seconds kPassOnLimit{5};

class Guardian {
 public:
  explicit Guardian(const GuardianPlan& plan)
      : plan_(plan),
        signals_(plan.also_forwarded),
        keeper_budget_(plan.respawns_max, plan.respawn_window) {
    if (signals_.refused()) {
      give_up(*signals_.refused());
      return;
    }
    const auto reaper = agent::become_sub_reaper();
    if (!reaper) log::warning(to_string(reaper.error()));
    start_keeper();
    if (!prepare()) return;
    for (const GuardedChild& child : plan.children) {
      children_.push_back(
          {&child, std::nullopt, {plan.respawns_max, plan.respawn_window}, Clock::now()});
    }
  }
  int run();

 private:
  bool prepare();
  void give_up(const Failure& why);
  void start_keeper();
  void keeper_ended();
  void start_due();
  void start(Child& child);
  void wait();
  void handle_signals();
  void interrupt_again();
  void reap(Child& child);
  void agent_ended(const Child& child, int pid, const ChildEnd& end);
  void service_ended(Child& child, int pid, const ChildEnd& end);
  void end_services();
  void kill_all();
  void kill_strays();
  void kill_agent_cgroup(int pid);
  std::optional<TimePoint> next_deadline() const;
  bool any(bool agents) const;
  bool all_decided() const;
  bool owns(int pid) const;

  const GuardianPlan& plan_;
  GuardianSignals signals_;
  InterruptCounter interrupts_;
  Keeper keeper_;
  RespawnBudget keeper_budget_;
  std::optional<TimePoint> keeper_at_;  // When the next is started, if one was killed.
  std::vector<Child> children_;
  int exit_code_ = 0;
  bool passed_now_on_ = false;         // A second Ctrl-C, to agents that have nodes elsewhere.
  bool ending_ = false;                // The agents are gone; services are ending.
  std::optional<TimePoint> kill_at_;   // Then all that is left is killed.
  std::optional<TimePoint> leave_at_;  // Everything has been killed; anything left then cannot be.
};

// A child, or a start that is due: there is something left to guard.
bool Guardian::any(bool agents) const {
  return std::any_of(children_.begin(), children_.end(), [&](const Child& child) {
    return child.is_agent() == agents && (child.process || child.start_at);
  });
}

// Whether what the agents that live still do changes nothing.
bool Guardian::all_decided() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) {
    return !child.is_agent() || !child.process || child.decided();
  });
}

bool Guardian::owns(int pid) const {
  if (pid == keeper_.pid()) return true;
  return std::any_of(children_.begin(), children_.end(), [&](const Child& child) {
    return child.process && child.process->pid == pid;
  });
}

int Guardian::run() {
  start_due();
  if (plan_.started && !children_.empty()) plan_.started();
  while (any(true) || any(false)) {
    if (!any(true) && !ending_) end_services();
    if (leave_at_ && Clock::now() >= *leave_at_) {
      log::error("giving up: a process survives SIGKILL (uninterruptible sleep)");
      break;
    }
    if (kill_at_ && Clock::now() >= *kill_at_) kill_all();
    start_due();
    wait();
    handle_signals();
    for (Child& child : children_) reap(child);
  }
  kill_strays();
  if (plan_.tidy_up) plan_.tidy_up();
  // If a process survives SIGKILL, the keeper stays until it is gone, and then removes the cgroup.
  const bool is_empty = !plan_.keeper || agent::remove_cgroup(plan_.keeper->cgroup);
  if (is_empty) keeper_.dismiss();  // Last: we may still be killed.
  if (plan_.ended) plan_.ended(exit_code_);
  if (is_empty) keeper_.wait();
  return exit_code_;
}

void Guardian::start_keeper() {
  if (!plan_.keeper) return;
  auto keeper = Keeper::start(*plan_.keeper);
  if (!keeper) return log::warning(to_string(keeper.error()));
  keeper_ = *keeper;
  for (const Child& child : children_) {
    if (child.process) keeper_.child_started(child.process->pid);
  }
}

bool Guardian::prepare() {
  const Result<void> prepared = plan_.prepare ? plan_.prepare() : Result<void>();
  if (!prepared) give_up(prepared.error());
  return prepared.has_value();
}

void Guardian::give_up(const Failure& why) {
  log::error(to_string(why));
  exit_code_ = EXIT_FAILURE;
}

// The keeper exits before us only if killed; then another starts, when the budget allows.
void Guardian::keeper_ended() {
  const TimePoint now = Clock::now();
  const RespawnBudget::Next next = keeper_budget_.died(now);
  keeper_at_ = next.at;
  log::warning(keeper_killed(keeper_.pid(), next, now));
  keeper_.wait();
  agent::reap_unknown_children([this](int pid) { return owns(pid); });
}

void Guardian::start_due() {
  if (keeper_at_ && Clock::now() >= *keeper_at_) {
    keeper_at_.reset();
    start_keeper();
  }
  for (Child& child : children_) {
    if (child.start_at && Clock::now() >= *child.start_at) start(child);
  }
}

void Guardian::start(Child& child) {
  child.start_at.reset();
  GuardianSetup setup{signals_.mask_before(), {signals_.fd()}};
  for (const Child& other : children_) {
    if (other.process) setup.own_fds.push_back(other.process->pidfd.get());
  }
  Result<GuardedProcess> process = start_guarded(*child.plan, setup);
  if (process) {
    keeper_.child_started(process->pid);
    child.process = std::move(*process);
    return;
  }
  log::error(to_string(process.error()));
  if (child.is_agent() && exit_code_ == 0) exit_code_ = EXIT_FAILURE;
}

std::optional<TimePoint> Guardian::next_deadline() const {
  std::optional<TimePoint> next;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at && (!next || *at < *next)) next = at;
  };
  for (const Child& child : children_) consider(child.start_at);
  consider(keeper_at_);
  consider(kill_at_);
  consider(leave_at_);
  return next;
}

// Waits until a child ends, a signal arrives, or an action is due.
void Guardian::wait() {
  std::vector<pollfd> polls{{signals_.fd(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (child.process) polls.push_back({child.process->pidfd.get(), POLLIN, 0});
  }
  const std::optional<TimePoint> next = next_deadline();
  if (polls.size() > 1 || next) poll_until(polls, next);
}

void Guardian::handle_signals() {
  for (;;) {
    const auto [signal, origin] = signals_.next();
    if (signal == 0) return;
    if (signal == SIGCHLD) {
      const int known = agent::reap_unknown_children([this](int pid) { return owns(pid); });
      if (known != 0 && known == keeper_.pid()) keeper_ended();
    } else if (interrupts_.signalled(signal, origin)) {
      interrupt_again();
    } else {
      signal_agents(children_, signal);
      if (plan_.signalled) plan_.signalled(signal);
      if (signal == SIGTSTP) ::raise(SIGSTOP);  // The shell shows us as stopped, as it should.
    }
  }
}

// The second Ctrl-C at a terminal is passed to agents that have nodes elsewhere. If there are none,
// and the third time, everything is killed at once.
void Guardian::interrupt_again() {
  log::warning("interrupted again: killing everything");
  if (!all_decided()) exit_code_ = exit_code_of_signal(SIGINT);
  const bool is_first = !std::exchange(passed_now_on_, true);
  if (!is_first || !pass_now_on(children_)) return kill_all();
  kill_at_ = Clock::now() + kPassOnLimit;
}

// Reaps `child` if it has ended, and acts on it.
void Guardian::reap(Child& child) {
  if (!child.process) return;
  const int pid = child.process->pid;
  siginfo_t info{};
  const bool lost = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0;
  if (lost ? errno == EINTR : info.si_pid == 0) return;
  child.process.reset();
  keeper_.child_ended(pid);
  ChildEnd end{.unseen = lost};
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  // First the processes, then the messages.
  kill_agent_cgroup(pid);  // In one write, so that no fork can escape.
  kill_strays();
  if (plan_.keeper && plan_.keeper->workers) plan_.keeper->workers->forget(pid);
  if (child.is_agent()) return agent_ended(child, pid, end);
  service_ended(child, pid, end);
}

void Guardian::kill_agent_cgroup(int pid) {
  if (!plan_.keeper || plan_.keeper->cgroup.empty()) return;
  agent::kill_cgroup(plan_.keeper->cgroup + "/" + agent::agent_cgroup_name(pid));
}

void Guardian::agent_ended(const Child& child, int pid, const ChildEnd& end) {
  const bool was_killed = end.signal != 0 || end.unseen;
  const std::optional<int> decided = was_killed ? child.decided() : std::nullopt;
  if (exit_code_ == 0) exit_code_ = decided.value_or(exit_code_of(end));
  if (!was_killed) return;
  const bool by_us = leave_at_.has_value();
  if (decided && !by_us) log::warning(agent_killed_late(child.plan->name, pid, end));
  if (decided) return;
  const std::string text = agent_killed(child.plan->name, pid, end, by_us);
  if (!by_us) log::error(text);
  if (plan_.on_agent_killed) plan_.on_agent_killed({*child.plan, exit_code_, text, by_us});
}

void Guardian::service_ended(Child& child, int pid, const ChildEnd& end) {
  // The failure has been printed, and another attempt would fail the same way.
  const bool cannot_recover = end.exit_code == kExitCannotStart;
  // Without this service the nodes can never meet. Later, when it has run before, workers continue
  // without it.
  const bool never_began = cannot_recover && !child.plan->argv.empty() && child.budget.used() == 0;
  if (never_began && !ending_ && exit_code_ == 0) {
    exit_code_ = kExitCannotStart;
    return signal_agents(children_, SIGTERM);
  }
  if (ending_ || is_done(end) || cannot_recover) return;
  const std::string what = child.plan->name + " (pid " + std::to_string(pid) + ") " + describe(end);
  const TimePoint now = Clock::now();
  const RespawnBudget::Next next = child.budget.died(now);
  child.start_at = next.at;
  const std::string text = service_died(what, next, now, child.budget.used(), plan_.respawns_max);
  next.is_late ? log::error(text) : log::warning(text);
}

void Guardian::end_services() {
  ending_ = true;
  const bool leaves = exit_code_ == kExitPreempted || exit_code_ == kExitNeverReady;
  for (Child& child : children_) {
    child.start_at.reset();
    const int signal = leaves ? child.plan->leave_signal : SIGTERM;
    if (child.process) ::kill(child.process->pid, signal);
  }
  if (any(false)) kill_at_ = Clock::now() + plan_.service_grace;
}

void Guardian::kill_all() {
  ending_ = true;
  kill_at_.reset();
  if (!leave_at_) leave_at_ = Clock::now() + kLeaveLimit;
  for (Child& child : children_) {
    child.start_at.reset();
    if (child.process) ::kill(child.process->pid, SIGKILL);
  }
}

void Guardian::kill_strays() {
  const auto report = agent::kill_unknown_children([this](int pid) { return owns(pid); });
  for (const std::string& process : report.stuck) {
    log::warning("a process left behind survives SIGKILL: " + process);
  }
}

}  // namespace

Result<DecidedCode> DecidedCode::make() {
  UniqueFd memory(::memfd_create("ddprun-decided", MFD_CLOEXEC));
  if (!memory) return errno_failure("making memory for an agent's exit code");
  return DecidedCode(std::move(memory));
}

void DecidedCode::decide(int exit_code) const {
  const auto byte = static_cast<unsigned char>(exit_code);
  (void)!::pwrite(memory_.get(), &byte, 1, 0);
}

std::optional<int> DecidedCode::read() const {
  unsigned char byte = 0;
  if (::pread(memory_.get(), &byte, 1, 0) != 1) return std::nullopt;
  return byte;
}

int guard(const GuardianPlan& plan) { return Guardian(plan).run(); }

}  // namespace ddprun::launcher
