#pragma once
// The scripts of deploy/slurm, which the program contains. Pure.

#include <string_view>

namespace ddprun::launcher {

enum class SlurmScript {
  kOneNode,  // one-node.sbatch: a part of a node.
  kNodes,    // ddprun.sbatch: whole nodes.
  kSpot,     // spot.sbatch: whole nodes that Slurm may take away; the job is queued again.
  kElastic,  // elastic.sbatch: a run of several jobs.
  kDaemon,   // daemon.sbatch: the daemon of such a run, as a job of its own.
};

std::string_view text_of(SlurmScript script);

}  // namespace ddprun::launcher
