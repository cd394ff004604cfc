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

std::string name_of(const WorkerDeath& death) {
  return "rank " + std::to_string(death.rank) + " (local rank " + std::to_string(death.local_rank) +
         (death.pid > 0 ? ", pid " + std::to_string(death.pid) : "") + ") on " + death.host;
}

// ddprun could not start it: there has never been such a process.
bool never_ran(const WorkerDeath& death) {
  const Fault fault = death.fault;
  return death.pid == 0 && (fault == Fault::kCannotStart || fault == Fault::kNoDescriptors ||
                            fault == Fault::kNoProcesses || fault == Fault::kNoMemory);
}

// "ranks 1, 5, 6 and 40 more".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kListed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kListed); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kListed) text += " and " + std::to_string(ranks.size() - kListed) + " more";
  return text;
}

std::string victims_text(const std::vector<WorkerDeath>& victims) {
  std::vector<int> own;
  for (const WorkerDeath& victim : victims) {
    if (!victim.stopped_by_us) own.push_back(victim.rank);
  }
  std::sort(own.begin(), own.end());
  const std::size_t stopped = victims.size() - own.size();
  std::string text;
  if (!own.empty()) {
    text += " " + std::to_string(own.size()) + " more failed after it (" + ranks_text(own) + ").";
  }
  if (stopped > 0)
    text += " " + std::to_string(stopped) + (stopped == 1 ? " other was" : " others were") +
            " stopped by ddprun.";
  return text;
}

std::string cause_text(const FirstCause& cause) {
  const WorkerDeath& death = cause.death;
  if (death.fault == Fault::kStuck) {
    return name_of(death) + " came no further: " + cause.witness + ".";
  }
  if (never_ran(death)) return name_of(death) + " could not be started.";
  std::string text = name_of(death) + " failed first: it ";
  text += cut_short(death) ? "was about to end with an error" : how_it_ended(death);
  return text + (death.evidence.empty() ? "." : ": " + death.evidence + ".");
}

}  // namespace

std::string how_it_ended(const WorkerDeath& death) {
  if (death.signal != 0) return "was killed by signal " + signal_text(death.signal);
  return "exited with " + std::to_string(death.exit_code);
}

int exit_status(const WorkerDeath& death) {
  return death.signal != 0 ? 128 + death.signal : death.exit_code;
}

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGABRT || signal == SIGSYS || signal == SIGTRAP;
}

bool cut_short(const WorkerDeath& death) { return death.was_failing && !is_crash(death.signal); }

std::string advice(const WorkerDeath& death) {
  if (never_ran(death) && death.fault != Fault::kCannotStart) {
    return "Raise that limit on that host, or start fewer workers there.";
  }
  switch (death.fault) {
    case Fault::kOutOfMemory:
      return "Give the job more memory, or let it use less: fewer data loader processes, a smaller "
             "batch.";
    case Fault::kNoMemory: return "See ulimit -v, and how much memory that host has.";
    case Fault::kNoSpace: return "Make room on that host's disk; see df -h and df -i.";
    case Fault::kNoDescriptors: return "See ulimit -n, and who does not close what it opens.";
    case Fault::kNoProcesses: return "See ulimit -u, and the pids.max of its cgroup.";
    case Fault::kStackOverflow: return "See ulimit -s, and look for endless recursion.";
    case Fault::kMissingLibrary: return "See ldd and LD_LIBRARY_PATH on that host.";
    case Fault::kImportError: return "See which python3 runs there, and its sys.path.";
    case Fault::kPeerLost:
      return "It lost a peer, but no other rank has failed: look at the network between them.";
    case Fault::kTimedOut: return "It gave up waiting for the other ranks.";
    case Fault::kStuck:
      return "A debugger or py-spy shows where such a rank stands while it lasts.";
    default: break;
  }
  if (death.signal == SIGKILL) {
    return "SIGKILL comes from outside the program: a batch system's limit, a person, or the "
           "kernel's out-of-memory killer, of which there is no sign here (see dmesg).";
  }
  if (death.signal == SIGSEGV || death.signal == SIGBUS || death.signal == SIGABRT ||
      death.signal == SIGFPE || death.signal == SIGILL) {
    return "The program crashed; a core file or a debugger shows where.";
  }
  if (death.fault == Fault::kCannotStart || death.exit_code == 127 || death.exit_code == 126) {
    return "The program could not be started; check its path and its permissions on that host.";
  }
  return "";
}

Verdict worker_verdict(const std::vector<WorkerDeath>& deaths, int restart_count,
                       int max_restarts) {
  const FirstCause cause = first_cause(deaths);
  Verdict verdict;
  verdict.kind = Verdict::Kind::kWorkerFailed;
  verdict.exit_code = cause.exit_code;
  verdict.first_cause = cause.death;
  std::vector<WorkerDeath> victims;
  for (const WorkerDeath& death : deaths) {
    if (death.rank != cause.death.rank) victims.push_back(death);
  }
  std::string text = cause_text(cause) + victims_text(victims);
  if (max_restarts > 0) {
    text += " No restart was left: " + std::to_string(restart_count) + " of " +
            std::to_string(max_restarts) + " were used.";
  }
  if (const std::string hint = advice(cause.death); !hint.empty()) text += " " + hint;
  if (!cause.death.detail.empty()) text += "\nIts last words:\n" + cause.death.detail;
  verdict.text = std::move(text);
  if (victims.size() > kVictimsMax) victims.resize(kVictimsMax);
  verdict.victims = std::move(victims);
  return verdict;
}

}  // namespace ddprun::rendezvous
