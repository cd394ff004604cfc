#pragma once
// The verdict as a file: --error-file, and the TORCHELASTIC_ERROR_FILE that ddprun's environment
// may have. Called by the agent that reports for the run.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/system/limits.h"
#include "common/worker_death.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// What the run ends with; `complaint` stands for a verdict if there is none.
rendezvous::Verdict verdict_or(const std::optional<rendezvous::Verdict>& verdict, int status,
                               const std::string& complaint);

// Writes it to each of `paths`; what goes wrong is logged.
void write_verdict_files(const std::vector<std::string>& paths, const rendezvous::Verdict& verdict,
                         const std::string& run_id);

// The same for a run that `signal` is about to end: before the workers get their grace, for
// the machine that sends it may kill everything meanwhile. A file that cannot be replaced later
// (common/system/user_file.h) is left out. Returns the paths that were not.
std::vector<std::string> note_interruption(const std::vector<std::string>& paths, int signal,
                                           int exit_code, const std::string& run_id);

// What is reported of a worker that could not be started: the user's mistake or the machine's, and
// what was short. Computes only.

// Its fault, exit code and detail; the rest is the caller's.
// `tasks`: the smallest pids.max of our cgroups.
WorkerDeath start_failure(const Failure& why, const Limits& limits, int workers,
                          std::optional<std::int64_t> tasks);

}  // namespace ddprun::agent
