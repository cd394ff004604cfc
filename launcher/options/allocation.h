#pragma once
// What a scheduler that started this ddprun on several machines says in the environment: how many
// there are, which one this is, and where they can meet. Pure. main.cc completes the options by it
// before it makes the plan; what the user typed always wins.
//
//   Slurm       srun, one task a node       everything
//   Open MPI    mpirun, one process a node  sizes and ranks; --rdzv-endpoint has to be given
//   Hydra       mpiexec of MPICH, the same
//   Kubernetes  indexed job                 this node's rank; --nnodes and --rdzv-endpoint are
//   given

#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.h"

namespace ddprun::launcher {

struct Allocation {
  std::string scheduler;  // "Slurm": for messages.
  int nodes = 1;
  int node_rank = 0;
  std::optional<Endpoint> endpoint =
      {};  // Where all of them can meet, if the scheduler says that much.
  std::vector<std::uint16_t> more_ports = {};  // Of `endpoint`, in case its own is taken.
  bool first_node_hosts = false;        // They meet on the node of rank 0, else by the address.
  std::string run_id = {};              // Empty: it has no name for the job.
  std::vector<std::string> hosts = {};  // By node rank; empty: unknown.
};

struct Surroundings {
  std::optional<Allocation> allocation;  // Absent: nobody, or nothing that the user did not say.
  std::string warning;                   // What looks like a mistake; empty: nothing.
};

// A failure is a whole sentence: what is wrong with how the scheduler started us, and the cure.
Result<Surroundings> look_around(const Options& options, const Environment& environment);

// What the scheduler has started together with this ddprun, and may end when the first of it ends
// (srun --wait, srun --kill-on-bad-exit, mpirun): a name that is the same for all of it, however
// the nodes were told to meet. Empty: nothing else.
std::string scheduler_step(const Environment& environment);

// `options` with what the user did not say filled in.
Options completed(Options options, const Allocation& allocation);

}  // namespace ddprun::launcher
