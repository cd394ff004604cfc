#include "launcher/guard/guardian_policy.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "common/exit_status.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

constexpr Milliseconds kFirstPause{200};

std::string pause_text(Duration pause) {
  return seconds_text(std::chrono::duration_cast<Milliseconds>(pause));
}

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

std::string agent_killed_late(const std::string& name, int pid, const ChildEnd& end) {
  return name + " (pid " + std::to_string(pid) + ") " + describe(end) +
         " after the run had ended, which changes nothing in its result";
}

std::string service_died(const std::string& what, const RespawnBudget::Next& next, TimePoint now,
                         int count, int per_window) {
  if (next.is_late) {
    return what + "; it dies too often, and is started again in " + pause_text(next.at - now) +
           ". Running workers continue";
  }
  return what + "; starting it again (" + std::to_string(count) + " of at most " +
         std::to_string(per_window) + " times a minute)";
}

std::string keeper_killed(int pid, const RespawnBudget::Next& next, TimePoint now) {
  return "the keeper (pid " + std::to_string(pid) + ") was killed; " +
         (next.is_late ? "they die too often: another is started in " + pause_text(next.at - now) +
                             ", and if ddprun and its agent are killed together before that, "
                             "something may be left behind"
                       : "starting another");
}

RespawnBudget::Next RespawnBudget::died(TimePoint now) {
  while (!starts_.empty() && starts_.front() + window_ <= now) starts_.pop_front();
  const bool is_late = used() >= per_window_;
  TimePoint at = now;
  if (is_late) {
    at = starts_.front() + window_;
    starts_.pop_front();
  } else if (used() > 0) {
    at += kFirstPause * (1 << std::min(used() - 1, 16));
  }
  starts_.push_back(at);
  return {at, is_late};
}

bool InterruptCounter::signalled(int signal, Origin origin) {
  if (origin == Origin::kNow) return true;
  const bool ends = signal == SIGINT || signal == SIGQUIT;
  return ends && origin == Origin::kTerminal && ++typed_ >= 2;
}

}  // namespace ddprun::launcher
