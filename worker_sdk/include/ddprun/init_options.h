#pragma once
// How a process group is made: options of ProcessGroup::init() and ProcessGroup::shrink().

#include <chrono>
#include <string>
#include <vector>

namespace ddprun {

/// Options of the backend nccl; other backends ignore them.
struct NcclOptions {
  /// The GPU of this rank, as an index into its visible GPUs. -1: the local rank, or 0 if only one
  /// GPU is visible.
  int device = -1;
  int max_ctas = 0;         ///< GPU blocks that a collective may use; 0: no limit.
  bool may_shrink = false;  ///< shrink() keeps NCCL's communicator (NCCL 2.28.7 or later).
};

struct InitOptions {
  /// "env://" reads MASTER_ADDR and MASTER_PORT; "tcp://host:port" and "file:///path" need rank and
  /// world_size below, unless RANK and WORLD_SIZE are set. Without these two, ranks that srun,
  /// mpirun, mpiexec or flux run started meet by its variables (docs/environment.md, "Ranks that a
  /// scheduler starts itself"); what none of them started is a world of one.
  std::string init_method = "env://";
  /// "auto": "shm" if all ranks share one host, "cpu" (shm within hosts, Gloo between hosts) if
  /// only some do, else "gloo". "cpu" means "shm" if all ranks share one host. "nccl": arrays are
  /// in GPU memory; see docs/nccl.md. The variable DDPRUN_BACKEND overrides this.
  std::string backend = "auto";
  /// The name of this host; empty: the machine's. Ranks with different names do not share memory,
  /// so that one machine can act as several hosts. The variable DDPRUN_HOST overrides this.
  std::string host = {};
  int rank = -1;        ///< -1: from the environment.
  int world_size = -1;  ///< -1: from the environment.
  NcclOptions nccl = {};
  /// After it a rank waits up to 2 s for rank 0, if that has joined, to name the missing ranks.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Time limit of one collective, unless the call has its own. On gloo, cpu and nccl the error of
  /// a time-out may be up to 3 s later: the ranks find the missing ones through the store.
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// Options of ProcessGroup::create().
struct CreateOptions {
  int rank = 0;  ///< Among the ranks of the group, 0 .. world_size - 1.
  int world_size = 1;
  /// The prefix of the group's keys, never used before in the store.
  std::string prefix = {};
  /// For each rank of the group, its rank in the job. Empty: the group is the whole job.
  std::vector<int> job_ranks = {};
  std::string backend = "auto";  ///< As InitOptions::backend.
  std::string host = {};         ///< As InitOptions::host.
  /// The numeric address at which the other hosts reach this one; empty: the address from which
  /// this host reaches MASTER_ADDR, or else the other hosts.
  std::string address = {};
  NcclOptions nccl = {};
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// Options of shrink().
struct ShrinkOptions {
  /// Ranks to exclude from the new group, such as where().peer of the Error.
  std::vector<int> lost = {};
  /// How long a call waits for the other ranks, and so the largest delay between their calls.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

}  // namespace ddprun
