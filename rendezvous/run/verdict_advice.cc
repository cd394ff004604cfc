// What to try after a failure.

#include <csignal>

#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

// What to give advice about. If no agent has judged the death, its status does; a C++ exception
// that nobody caught ends in abort(), so a core file shows where it came from.
Fault judged(const WorkerDeath& death) {
  const bool thrown = death.fault == Fault::kException && is_crash(death.signal);
  if (death.fault != Fault::kUnknown && !thrown) return death.fault;
  if (is_crash(death.signal)) return Fault::kCrash;
  if (death.signal != 0) return Fault::kSignal;
  return death.exit_code == 126 || death.exit_code == 127 ? Fault::kCannotStart : Fault::kExit;
}

std::string of_fault(Fault fault, bool one_machine) {
  switch (fault) {
    case Fault::kOutOfMemory:
      return "Give the job more memory, or let it use less: fewer data loader processes, a smaller "
             "batch.";
    case Fault::kNoMemory: return "See ulimit -v and the memory of that host.";
    case Fault::kNoSpace: return "Free space on that host's disk; see df -h and df -i.";
    case Fault::kNoDescriptors:
      return "See ulimit -n, and check for descriptors that are never closed.";
    case Fault::kNoProcesses: return "See ulimit -u, and the pids.max of its cgroup.";
    case Fault::kStackOverflow: return "See ulimit -s, and check for endless recursion.";
    case Fault::kMissingLibrary: return "See ldd and LD_LIBRARY_PATH on that host.";
    case Fault::kImportError: return "See which python3 runs there, and its sys.path.";
    case Fault::kPeerLost:
      return one_machine ? "It lost a peer, but no other rank has failed."
                         : "It lost a peer, but no other rank has failed: check the network "
                           "between them.";
    case Fault::kTimedOut: return "It gave up waiting for the other ranks.";
    case Fault::kStuck: return "While a rank is stuck, a debugger or py-spy shows where.";
    case Fault::kMismatch:
      return "All ranks must call the same collectives in the same order, with the same shapes, "
             "types and options.";
    case Fault::kCrash: return "The program crashed; a core file or a debugger shows where.";
    case Fault::kCannotStart:
      return "The program could not be started; check its path and its permissions on that host.";
    case Fault::kLeftEarly:
      return "Do the ranks have unequal numbers of batches? See uneven_inputs and join().";
    default: return "";
  }
}

}  // namespace

std::string advice(const WorkerDeath& death, bool one_machine) {
  const Fault fault = judged(death);
  if (never_ran(death) && fault != Fault::kCannotStart) {
    return "Raise that limit on that host, or start fewer workers there.";
  }
  if (fault == Fault::kSignal && death.signal == SIGKILL) {
    return "SIGKILL comes from outside the program: a batch system's limit, a person, or the "
           "kernel's out-of-memory killer, of which there is no sign here (see dmesg).";
  }
  return of_fault(fault, one_machine);
}

}  // namespace ddprun::rendezvous
