#pragma once
// A fork that becomes the child of this process's nearest sub-reaper: how a fork server makes a
// worker of the agent. For Python (python/startup/ddprun_preload/_worker.py), which calls it by its
// name; in the library of process_image.h.
//
// Plain fork() twice, with a process between the two that ends at once, copies the page tables of a
// large process twice and takes them down once, 40 ms for 700 MB. Here the process between shares
// the memory of the caller, which stands still meanwhile: one copy, 12 ms.

#include "agent/workers/process_image.h"

// Called as in os.fork(): Python's PyOS_BeforeFork and PyOS_AfterFork_*, or null.
struct ForkHooks {
  void (*before)();
  void (*after_in_parent)();
  void (*after_in_child)();
};

// Returns 0 in the fork, its number in the caller, and -errno if there is none: -EINTR if the
// process between was killed, and may have left one.
DDPRUN_IMAGE_API int ddprun_fork_below(const ForkHooks* hooks);
