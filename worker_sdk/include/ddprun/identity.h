#pragma once
// Which worker of which job this process is.

#include <string>

namespace ddprun {

/// A worker's place in its job, read from the environment that ddprun and torchrun set: RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, TORCHELASTIC_RESTART_COUNT,
/// TORCHELASTIC_RUN_ID.
struct Identity {
  int rank = 0;  ///< 0 .. world_size - 1, unique in the job.
  int world_size = 1;
  /// 0 .. local_world_size - 1, unique on this node. In an elastic::Job it stays with the process,
  /// and so may be larger than that once other workers have gone.
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;     ///< The number of this node.
  int restart_count = 0;  ///< Restarts of the job's workers so far; equal on all ranks.
  std::string run_id = "none";
};

}  // namespace ddprun
