#pragma once
// What a worker's process does from its birth in our memory until it is another program. For
// birth.cc, which is the parent's side.

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "agent/workers/raw_call.h"

namespace ddprun::agent {

enum class Stage {
  kNone,         // Nothing failed.
  kSession,      // A session and process group of its own.
  kDeathSignal,  // PR_SET_PDEATHSIG.
  kParentGone,   // We ended before the death signal was armed.
  kStreams,      // A table of descriptors of its own: 0, 1, 2 and that of the link.
  kProcessors,   // sched_setaffinity.
  kSignals,      // Default dispositions and mask.
  kExec,         // execve itself.
};

// What the parent tells the child, and what the child leaves behind.
struct ChildPlan {
  const char* const* argv;
  const char* const* environment;
  int stdout_fd;
  int stderr_fd;
  pid_t parent;
  const cpu_set_t* processors;  // Null: all of the parent's.
  std::size_t processors_bytes;
  const rlimit* descriptors = nullptr;  // Null, both: as we have them.
  const rlimit* processes = nullptr;
  int link_fd = -1;            // Becomes kLinkDescriptor; -1: it gets none.
  const int* slots = nullptr;  // EndSlots::Numbers; null: the child has a copy of our whole table.
  int null_fd = -1;            // /dev/null, and where the part of our table that it copies ends:
  unsigned table_end = 0;      // both only with slots.
  std::uint64_t ignored_signals = 0;  // That we ignore: bit n - 1 for signal n.
  int* noted = nullptr;               // Gets its process id; null: nobody wants to know.
  volatile Stage failed = Stage::kNone;
  volatile int error = 0;
};

// `argument`: a ChildPlan, or null for a child that ends at once. Does not return.
DDPRUN_IN_CHILD int run_child(void* argument);

}  // namespace ddprun::agent
