#include "rendezvous/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kVictimsMax = 64;  // More are counted, not listed.

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return std::to_string(signal) + (name ? " (SIG" + std::string(name) + ")" : "");
}

std::string advice(const WorkerDeath& death) {
  if (death.signal == SIGKILL) {
    return "SIGKILL comes from outside the program: the kernel's out-of-memory killer (see dmesg), "
           "a "
           "batch system's limit, or a person.";
  }
  if (death.signal == SIGSEGV || death.signal == SIGBUS || death.signal == SIGABRT ||
      death.signal == SIGFPE || death.signal == SIGILL) {
    return "The program crashed; a core file or a debugger shows where.";
  }
  if (death.exit_code == 127 || death.exit_code == 126) {
    return "The program could not be started; check its path and its permissions on that host.";
  }
  return "";
}

std::string victims_text(const std::vector<WorkerDeath>& victims) {
  if (victims.empty()) return "";
  const auto own = std::count_if(victims.begin(), victims.end(),
                                 [](const WorkerDeath& d) { return !d.stopped_by_us; });
  const auto stopped = std::ssize(victims) - own;
  std::string text;
  if (own > 0) text += " " + std::to_string(own) + " more failed after it.";
  if (stopped > 0)
    text += " " + std::to_string(stopped) + (stopped == 1 ? " other was" : " others were") +
            " stopped by ddprun.";
  return text;
}

}  // namespace

std::string how_it_ended(const WorkerDeath& death) {
  if (death.signal != 0) return "was killed by signal " + signal_text(death.signal);
  return "exited with " + std::to_string(death.exit_code);
}

int exit_status(const WorkerDeath& death) {
  return death.signal != 0 ? 128 + death.signal : death.exit_code;
}

Verdict worker_verdict(const std::vector<WorkerDeath>& deaths, int restart_count,
                       int max_restarts) {
  DDPRUN_ASSERT(!deaths.empty());
  auto first = std::find_if(deaths.begin(), deaths.end(),
                            [](const WorkerDeath& d) { return !d.stopped_by_us; });
  if (first == deaths.end()) first = deaths.begin();

  Verdict verdict;
  verdict.kind = Verdict::Kind::kWorkerFailed;
  verdict.exit_code = std::max(1, exit_status(*first));
  verdict.first_cause = *first;
  std::vector<WorkerDeath> victims;
  for (const WorkerDeath& death : deaths) {
    if (death.rank != first->rank) victims.push_back(death);
  }
  std::string text = "rank " + std::to_string(first->rank) + " (local rank " +
                     std::to_string(first->local_rank) + ", pid " + std::to_string(first->pid) +
                     ") on " + first->host + " failed first: it " + how_it_ended(*first) + ".";
  text += victims_text(victims);
  if (max_restarts > 0) {
    text += " No restart was left: " + std::to_string(restart_count) + " of " +
            std::to_string(max_restarts) + " were used.";
  }
  if (const std::string hint = advice(*first); !hint.empty()) text += " " + hint;
  if (!first->detail.empty()) text += "\nIts last words:\n" + first->detail;
  verdict.text = std::move(text);
  if (victims.size() > kVictimsMax) victims.resize(kVictimsMax);
  verdict.victims = std::move(victims);
  return verdict;
}

}  // namespace ddprun::rendezvous
