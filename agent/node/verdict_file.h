#pragma once
// The verdict as a file: --error-file, and the TORCHELASTIC_ERROR_FILE that whoever started ddprun
// may have given it. Called by the agent that speaks for the run.

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// Removes what an earlier run has left at `path`, which `flag` named, and finds out now whether it
// could be written.
Result<void> prepare_verdict_file(const std::string& path, const char* flag);

// What the run ends with; `complaint` is what stands for a verdict where nobody could give one.
rendezvous::Verdict verdict_or(const std::optional<rendezvous::Verdict>& verdict, int status,
                               const std::string& complaint);

// Writes it to each of `paths`; what goes wrong is logged.
void write_verdict_files(const std::vector<std::string>& paths, const rendezvous::Verdict& verdict,
                         const std::string& run_id);

}  // namespace ddprun::agent
