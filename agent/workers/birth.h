#pragma once
// Starts a process at the price of vfork: the child borrows our memory until it has become the
// new program, so that the cost does not grow with the agent's size and an exec error comes back as
// a plain variable. Unlike after vfork we go on meanwhile, and may prepare the next. Called by
// Spawner only. What a worker may expect at birth is in process_host.h.

#include <cstdint>
#include <memory>

#include "agent/workers/end_slots.h"
#include "agent/workers/process_host.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

struct SpawnedProcess {
  int pid = 0;
  UniqueFd pidfd;  // Readable once the process has ended.
};

// What children that are born together have in common.
struct BirthRound {
  const EndSlots* slots = nullptr;    // Borrowed. Null: each takes our whole table with it.
  std::uint64_t ignored_signals = 0;  // See ignored_signals().
};

// A process that is being started. The thread that makes one must not end before the process, which
// would be killed with it.
class Birth {
 public:
  // `place`: of the slots, which no other child that is being born has.
  Birth(WorkerSpec spec, WorkerEnds ends, const BirthRound& round, std::size_t place);
  ~Birth();  // Waits, too.
  Birth(const Birth&) = delete;
  Birth& operator=(const Birth&) = delete;

  // Waits until the child has become the program; once. Or what failed on the way: a child that
  // failed has been reaped already.
  Result<SpawnedProcess> finish();

 private:
  struct Child;
  std::unique_ptr<Child> child_;
};

// Those that this process ignores, and a program that it becomes would, too: bit n - 1 is signal n.
std::uint64_t ignored_signals();

// Whether a process can be born in that cgroup and live. Some kernels (seen with 6.18) take a
// process that is born in a cgroup which has been killed before for one that was forked too late to
// be killed with the others, and kill it.
bool can_be_born_in(int cgroup_fd);

// Our own environment, "NAME=value" each.
std::vector<std::string> current_environment();

}  // namespace ddprun::agent
