#pragma once
// The environment of one worker: the agent's own, then exactly what torchrun 2.14 sets, then what
// ddprun adds. Pure. Called by the agent for each worker it starts.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// A worker's identity in its round, and what the whole job agrees on. Filled by the agent from its
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
  // The address and port of the round's store as all nodes know it, if this node's workers have
  // another one.
  std::string meeting_place = {};
  // Over which of its interfaces this node sends data, if not over that of its name: one, and all
  // that are as fast, "ib0,ib1", for NCCL, which finds that of the name itself.
  std::string data_interface = {};
  std::string data_interfaces = {};
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
};

// What this node adds.
struct WorkerContext {
  std::string error_file = {};  // TORCHELASTIC_ERROR_FILE; empty if there is no log folder.
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  bool virtual_local_rank = false;  // LOCAL_RANK=0 everywhere, one GPU each.
  bool shares_machine = false;      // With another node of this run, see --local-nodes.
  int shared_gpus = 0;              // Several ranks a GPU: how many GPUs they share; 0: no sharing.
  std::string device{};      // CUDA_VISIBLE_DEVICES of this worker alone; empty: as it comes.
  int omp_threads = 0;       // OMP_NUM_THREADS, whatever it was; 0: torchrun's rule.
  int terminal_columns = 0;  // Of our standard output, 0 if it is not a terminal.
  // More "NAME=value", such as DDPRUN_JOB; wins over all else.
  std::vector<std::string> extra = {};
};

using Environment = std::vector<std::string>;  // "NAME=value" each.

// DDPRUN_MEMORY and its kind, of a memory folder at `base` (agent/memory/memory_server.h).
Environment memory_variables(const std::string& base, std::uint64_t bytes);

// One entry per name, sorted by name. Variables with names that begin with DDPRUN_TOKEN are not
// passed on: the token admits to the control plane, and a worker has no business there.

Environment worker_environment(const RankFacts& facts, const WorkerContext& context,
                               const Environment& parent);

// The value of `name`, or `fallback`.
std::string_view find_variable(const Environment& environment, std::string_view name,
                               std::string_view fallback = {});

// CUDA_VISIBLE_DEVICES, read as the CUDA driver reads it.

// The entries before the first that the driver would not accept: a negative number ("-1", which
// often means "none") or anything that is neither a number nor a GPU-/MIG- name. Blanks around one
// are dropped.
std::vector<std::string> split_gpu_list(std::string_view value);

// How many of `present` GPUs such a list leaves visible. A number from `present` on ends the list;
// one that comes twice leaves none at all. Names are taken on trust.
int visible_gpus(std::string_view value, int present);

}  // namespace ddprun::agent
