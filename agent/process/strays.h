#pragma once
// Finds and kills processes that workers left behind. A process whose parent dies becomes a child
// of the nearest sub-reaper above it: the agent, or the guardian once the agent is gone. Whoever
// finds children there that it did not start itself kills them and all below them. Used by
// PosixProcessHost and guard().

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

constexpr std::chrono::seconds kStrayLimit{
    2};  // SIGKILL takes longer only in uninterruptible sleep.

// Makes this process the one to which orphaned descendants are re-parented. A failure: the kernel
// does not let it, and what detaches itself from a worker may outlive the run.
Result<void> become_sub_reaper();

// The processes that `pid` has started and not reaped, by any of its threads.
std::vector<int> children_of(int pid);

// Every child of this process, dead ones that are not reaped yet included. Reliable: only we can
// take an entry out of that list.
std::vector<int> children_of_self();

struct StrayReport {
  int killed = 0;                  // Direct children killed and reaped.
  std::vector<std::string> stuck;  // "pid 4711 (python3), state D": still there when time was up.
};

// SIGKILLs every child that `is_known` does not know, and everything below it, and reaps what
// becomes ours, until no such child is left or `limit` has passed. Blocks while it waits.
StrayReport kill_unknown_children(const std::function<bool(int pid)>& is_known,
                                  std::chrono::milliseconds limit = kStrayLimit);

// Reaps each dead child that `is_known` does not know; stops at the first dead one that it does
// know and returns its pid, else 0. Never takes away the exit of a known child. Does not block.
int reap_unknown_children(const std::function<bool(int pid)>& is_known);

}  // namespace ddprun::agent
