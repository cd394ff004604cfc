#pragma once
// The one record of how a worker ended: a worker's end is this record from the moment at which its
// process is reaped until the verdict. Nothing is copied into another shape on the way. Each part
// is filled in where the fact is known, and carried unchanged from there. Pure.
//
//   agent/process      reaps      local_rank, pid, exit_code, signal
//   agent/node         places     rank, host, stopped_by_us; at once, so that a node reports its
//                                 ends in the order of the exits, even if a pipe is still held
//   agent/health       judges     detail, fault, evidence, blames, was_failing, collective, steps;
//                                 of a failure that has words in its pipe yet, a moment later
//   agent/node         reports    Failed: the first of the node; Stopped: all of them, in order
//   rendezvous/run     orders     those of all nodes by report; clocks of hosts are never compared
//   rendezvous/run     concludes  which was the cause of the others (first_cause)

#include <cstdint>
#include <string>

#include "common/archive/archive.h"

namespace ddprun {

// What kind of failure a death was, as far as the evidence on its host goes.
enum class Fault {
  kUnknown,         // Not examined; also what an older agent sends.
  kExit,            // It ended with a code and left no explanation.
  kSignal,          // A signal from another process.
  kCrash,           // SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT: its own doing.
  kStackOverflow,   // SIGSEGV at the end of a stack.
  kException,       // Uncaught, in Python or in C++.
  kImportError,     // Python found no such module.
  kSyntaxError,     // Python could not read the program.
  kCannotStart,     // execve refused it, or there is no interpreter for it.
  kMissingLibrary,  // The loader found no such shared library.
  kOutOfMemory,     // The kernel's OOM killer ended it.
  kNoMemory,        // It was refused memory: bad_alloc, MemoryError.
  kNoSpace,         // A disk was full.
  kNoDescriptors,   // Too many open files.
  kPeerLost,        // It lost the connection to another rank: a victim, if another rank failed too.
  kTimedOut,        // It waited for another rank for too long.
  kStuck,           // Others waited for it in vain, or it made no progress, until we ended it.
  kMismatch,        // The ranks disagree about a collective, or about the model.
  kAborted,         // It called abort() on the process group.
  kLeftEarly,       // It ended with 0 while others still waited for it in a collective; or it had
                    // left their group, and still ran when it was stopped.
  kNoProcesses,     // There may be no more of them.
  kGpuMemory,       // CUDA refused it memory of a GPU.
  kGpuAssert,       // An assertion in a kernel on a GPU: an index or a label out of range.
  kGpuAccess,       // A kernel used an address that is not its own, or was ended by the GPU.
  kGpuBroken,       // A GPU or its memory failed: ECC, NVLink, a driver's Xid.
  kNoGpu,           // The GPU that it wanted is not there, not free, or not for its PyTorch.
  kNccl,            // An error of NCCL's own, which lost no peer.
  kNcclVersion,     // The ranks have different versions of NCCL.
  kAddressInUse,    // Another process listens on the port.
  kNoFile,          // A file that it opened is not there.
  kQuota,           // The user may not write more to that file system.
  kTimeLimit,       // A signal, when the time that the batch system had granted was over.
  kWrongResult,     // An audit of an elastic job has found that it computes wrong.
};
constexpr Fault kLastFault = Fault::kWrongResult;

struct WorkerDeath {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;  // 0: it could not be started.
  std::string host{};
  int exit_code = 0;  // When signal == 0.
  int signal = 0;
  bool stopped_by_us = false;  // It ended after the agent had begun to stop it.
  std::string detail{};  // Error file's message, last lines of stderr, or why it never started.
  Fault fault = Fault::kUnknown;
  std::string evidence{};    // What besides its status shows that, as a half sentence.
  int blames = -1;           // The rank that it lost, waited for or disagreed with, as it reported.
  bool was_failing = false;  // stopped_by_us, but it had already printed why it was about to end.
  std::int64_t collective = 0;  // The last collective of the whole job that it entered; 0: unknown.
  std::int64_t steps = 0;       // That it had synchronised; 0: unknown.
  std::string work{};     // What it computed when it failed of itself: "step 7, shard 3: ...".
  bool can_skip = false;  // Its job can do without that.
  std::int64_t kept_steps = 0;  // Steps in the state that it had as a rank of an elastic job.

  bool succeeded() const { return exit_code == 0 && signal == 0; }
  bool operator==(const WorkerDeath&) const = default;
};

// What a process computed whose failure has ended a round: for the ranks of the next one, of which
// one writes a bundle of it.
struct LostWork {
  std::string work{};  // As WorkerDeath::work; empty: nothing is known to be the reason.
  std::string who{};   // "rank 2 on node7"
  std::string how{};   // "was killed by signal 11 (SIGSEGV)"
  bool operator==(const LostWork&) const = default;
};
void fields(auto& a, archive::Is<LostWork> auto& m) {
  a("work", m.work), a("who", m.who), a("how", m.how);
}

// "exited with 7", "was killed by signal 9 (SIGKILL)".
std::string how_it_ended(const WorkerDeath& death);

// The status a shell would give the worker: its exit code, or 128 + signal.
int exit_status(const WorkerDeath& death);

// A signal that shows a program's own mistake and is not sent to stop one.
bool is_crash(int signal);

// It was about to end with an error when we stopped it: its status is what our signal made of it.
bool cut_short(const WorkerDeath& death);
// ddprun could not start it: there has never been such a process.
bool never_ran(const WorkerDeath& death);

}  // namespace ddprun
