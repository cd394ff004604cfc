#pragma once
// The environment of one worker: the agent's own, then exactly what torchrun 2.14 sets, then what
// ddprun adds. Pure. Called by the agent for each worker it starts.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

// How many workers this node runs: --nproc-per-node as a number. Binding workers to processors is
// not done here. Pure but for read_placement_facts(). Called by the agent before it joins.
constexpr int kWorkersPerNodeMax = 4096;  // Above it a typing error is more likely than a machine.

struct PlacementFacts {
  int cpus = 1;  // That this process may run on.
  int gpus = 0;  // Present, before CUDA_VISIBLE_DEVICES.
  std::optional<std::string> cuda_visible_devices = std::nullopt;
  std::optional<double> quota = std::nullopt;  // Of a cgroup, in processors (docker run --cpus).
  int machine_cpus = 0;                        // That are online; 0: unknown.
  // Of MIG, that CUDA_VISIBLE_DEVICES leaves, and cards beside them that have none; absent: no GPU
  // is in MIG mode.
  std::optional<int> slices = std::nullopt;
};

// The processors that workers get: those they may run on, or fewer by the quota.
int processors_for_workers(const PlacementFacts& facts);

// What limits the workers more than the user may know, as sentences; `workers`: on this machine.
// `by_slurm`: it has started this.
std::vector<std::string> count_warnings(std::string_view request, int workers,
                                        const PlacementFacts& facts, bool by_slurm);

// `request` is a number, "auto" (the GPUs, or the CPUs if there is none), "gpu" or "cpu".
Result<int> workers_per_node(std::string_view request, const PlacementFacts& facts);

// That this process may run on; at least 1.
int usable_processors();

// Counts without a CUDA context. `root` is where /proc and /dev are looked for.
PlacementFacts read_placement_facts(const std::string& root = "/");

// What each of a machine's workers runs on, as it is decided before any of them starts. Pure. The
// launcher decides for all of its nodes, each agent gets the part of its own.

// By worker; empty: nothing was asked for.
struct WorkerPlacement {
  std::vector<std::vector<int>> processors = {};  // Empty: not bound.
  std::vector<int> omp_threads = {};              // Empty: torchrun's rule.
  // CUDA_VISIBLE_DEVICES, each for a worker that is to see this one alone, as its GPU 0: a slice of
  // MIG, for CUDA would give all of them the first.
  std::vector<std::string> devices = {};
  int shared_gpus = 0;  // That ranks share, see WorkerContext; of --oversubscribe-gpu.

  // Those of the `index`th of nodes with `workers` each.
  WorkerPlacement of_node(int index, int workers) const;
};

// Who a worker is in its round, and what the whole job agrees on. Filled by the agent from its
// seat.
struct RankFacts {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int group_rank = 0;  // The node's rank.
  int group_world_size = 1;
  int role_rank = 0;
  int role_world_size = 1;
  std::string role = "default";
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
};

// What this node adds.
struct WorkerContext {
  std::string error_file = {};  // TORCHELASTIC_ERROR_FILE; empty where there is no log folder.
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  bool virtual_local_rank = false;  // LOCAL_RANK=0 everywhere, one GPU each.
  bool shares_machine = false;      // With another node of this run, see --local-nodes.
  int shared_gpus = 0;              // Several ranks a GPU: how many GPUs they share; 0: no sharing.
  std::string device{};      // CUDA_VISIBLE_DEVICES of this worker alone; empty: as it comes.
  int omp_threads = 0;       // OMP_NUM_THREADS, whatever it was; 0: torchrun's rule.
  int terminal_columns = 0;  // Of our standard output, 0 if it is no terminal.
  // More "NAME=value", such as DDPRUN_JOB; wins over all else.
  std::vector<std::string> extra = {};
};

using Environment = std::vector<std::string>;  // "NAME=value" each.

// One entry a name, sorted by name. Variables whose name begins with DDPRUN_TOKEN are not passed
// on: the token admits to the control plane, and a worker has no business there.
Environment worker_environment(const RankFacts& facts, const WorkerContext& context,
                               const Environment& parent);

// The value of `name`, or `fallback`.
std::string_view find_variable(const Environment& environment, std::string_view name,
                               std::string_view fallback = {});

}  // namespace ddprun::agent
