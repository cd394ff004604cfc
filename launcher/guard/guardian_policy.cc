#include "launcher/guard/guardian_policy.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "common/exit_status.h"

namespace ddprun::launcher {
namespace {

constexpr Milliseconds kFirstPause{200};

}  // namespace

int exit_code_of(const ChildEnd& end) {
  if (end.unseen) return 1;
  return end.signal != 0 ? exit_code_of_signal(end.signal) : end.exit_code;
}

bool is_done(const ChildEnd& end) { return exit_code_of(end) == 0; }

std::string describe(const ChildEnd& end) {
  if (end.unseen) return "ended, and something else took its exit code";
  if (end.signal == 0) return "exited with code " + std::to_string(end.exit_code);
  const char* name = ::sigabbrev_np(end.signal);
  return "was killed by " +
         (name ? "SIG" + std::string(name) : "signal " + std::to_string(end.signal));
}

std::string agent_killed(const std::string& name, int pid, const ChildEnd& end, bool by_us) {
  if (by_us) return "interrupted again while the workers were stopping; all were killed";
  return name + " (pid " + std::to_string(pid) + ") " + describe(end) +
         "; its workers were killed with it";
}

std::string keeper_killed(int pid, bool another_comes) {
  return "the keeper (pid " + std::to_string(pid) + ") was killed; " +
         (another_comes ? "starting another"
                        : "they die too often, so no other is started: if ddprun and its agent are "
                          "killed together, something may be left behind");
}

std::optional<TimePoint> RespawnBudget::died(TimePoint now) {
  while (!starts_.empty() && starts_.front() + window_ <= now) starts_.pop_front();
  if (used() >= per_window_) return std::nullopt;
  const TimePoint next = used() == 0 ? now : now + kFirstPause * (1 << std::min(used() - 1, 16));
  starts_.push_back(next);
  return next;
}

bool InterruptCounter::signalled(int signal, Origin origin) {
  if (origin == Origin::kNow) return true;
  const bool ends = signal == SIGINT || signal == SIGQUIT;
  return ends && origin == Origin::kTerminal && ++typed_ >= 2;
}

}  // namespace ddprun::launcher
