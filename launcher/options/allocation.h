#pragma once
// What the environment contains if a scheduler started this ddprun on several machines: how many
// there are, which one this is, and where they can meet. Pure. main.cc completes the options with
// it before it makes the plan; options that the user gave always win.
//
//   Slurm       srun, one task per node       everything
//   Open MPI    mpirun, one process per node  sizes and ranks; --rdzv-endpoint has to be given
//   Hydra       mpiexec of MPICH              the same
//   Kubernetes  indexed job                   this node's rank; --nnodes and --rdzv-endpoint are
//                                             given

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
      {};  // Where all nodes can meet, if the scheduler provides that.
  std::vector<std::uint16_t> more_ports = {};  // Further ports of `endpoint`, if its own is taken.
  bool first_node_hosts = false;        // They meet on the node of rank 0, else at the address.
  std::string run_id = {};              // Empty: it has no name for the job.
  std::vector<std::string> hosts = {};  // By node rank; empty: unknown.
};

struct Surroundings {
  std::optional<Allocation> allocation;  // Absent: no scheduler, or the user gave everything.
  std::string warning;                   // A probable mistake; empty: none.
};

// A failure is a whole sentence: what is wrong in the way the scheduler started us, and the cure.
Result<Surroundings> read_surroundings(const Options& options, const Environment& environment);

// What the scheduler has started together with this ddprun, and may end when the first of it ends
// (srun --wait, srun --kill-on-bad-exit, mpirun): a name that is the same for all of it, whatever
// endpoint the nodes were given. Empty: nothing else.
std::string scheduler_step(const Environment& environment);

// `options`, completed where the user gave nothing.
Options completed(Options options, const Allocation& allocation);

}  // namespace ddprun::launcher
