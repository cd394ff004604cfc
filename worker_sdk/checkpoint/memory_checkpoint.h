#pragma once
// Finds checkpoints in places that hosts do not share, of which some may have turned out to be
// unusable. latest_checkpoint() of ddprun/checkpoint.h is the same for programs. Used by
// worker_sdk/job.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "ddprun/checkpoint.h"

namespace ddprun::worker_sdk {

struct CheckpointBounds {
  std::int64_t above = -1;                                          // Steps.
  std::uint64_t below = std::numeric_limits<std::uint64_t>::max();  // Numbers of checkpoints.
};

struct FetchedCheckpoint {
  std::uint64_t number = 0;
  std::int64_t step = 0;
  std::string path;     // On this host, which has all files, unless there is a problem.
  int culprit = -1;     // The rank that could not write what its host lacks,
  std::string problem;  // and why; the same on all ranks.
};

// The newest checkpoint within `bounds` all of whose files some host has. Collective; the same on
// all ranks.
std::optional<FetchedCheckpoint> newest_checkpoint(ProcessGroup& group,
                                                   const CheckpointPlace& place,
                                                   const CheckpointBounds& bounds);

}  // namespace ddprun::worker_sdk
