#pragma once
// Starts many workers: while the last ones become their programs, the next is prepared. Owned by
// PosixProcessHost.

#include <deque>
#include <vector>

#include "agent/workers/child_start.h"

namespace ddprun::agent {

class Spawner {
 public:
  Spawner();

  // Begins to start it, with `ends` as its streams. False: an earlier one could not be started, so
  // this one is not.
  bool add(WorkerSpec spec, WorkerEnds ends);

  // Waits until all are started, and gives them in order; the first failure is the last.
  std::vector<Result<SpawnedProcess>> finish();

  // One alone, while no others are being started.
  Result<SpawnedProcess> spawn(WorkerSpec spec);

 private:
  void finish_first();
  void finish_all();

  EndSlots slots_;
  StartBatch round_;
  std::size_t begun_ = 0;  // In this round.
  std::deque<ChildStart> starts_;
  std::vector<Result<SpawnedProcess>> started_;
  bool failed_ = false;
};

}  // namespace ddprun::agent
