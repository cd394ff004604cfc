#pragma once
// The words of a verdict: one paragraph that says what failed first, where, and what to do next.
// Pure.

#include <string>
#include <vector>

#include "rendezvous/wire.h"

namespace ddprun::rendezvous {

// "exited with 7", "was killed by signal 9 (SIGKILL)".
std::string how_it_ended(const WorkerDeath& death);

// The status a shell would give the worker: its exit code, or 128 + signal.
int exit_status(const WorkerDeath& death);

// The verdict on a run whose workers failed. `deaths` is in the order of the reports and not empty;
// the first that ddprun did not cause itself is the first cause, the others are victims.
Verdict worker_verdict(const std::vector<WorkerDeath>& deaths, int restart_count, int max_restarts);

}  // namespace ddprun::rendezvous
