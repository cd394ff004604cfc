#pragma once
// What the environment contains if a scheduler or mpirun started this process as one of several
// ranks, without ddprun or torchrun in between. Pure. environment.cc calls this if RANK and
// WORLD_SIZE are not set: those of a launcher always win.
//
//   started by                      rank, size            where the ranks meet
//   mpirun of Open MPI              OMPI_COMM_WORLD_*     one host: there; several: MASTER_ADDR
//   mpiexec (Hydra: MPICH, Intel)   PMI_*, MPI_LOCAL*     the same
//   mpiexec (PALS)                  PMI_*, PMI_LOCAL_*    the same
//   flux run                        FLUX_*                the same
//   srun                            SLURM_*               first host of SLURM_STEP_NODELIST
//   another launcher of PMI         PMI_*                 MASTER_ADDR
//
// The first row that matches counts: mpirun's and Flux's own daemons may be tasks of srun. A batch
// script and the shell of salloc have SLURM_PROCID, too, but are no tasks of a step.

#include <cstdint>
#include <optional>
#include <string>

#include "worker_sdk/join/variables.h"

namespace ddprun::worker_sdk {

struct StartedTasks {
  std::string starter;  // "srun": for messages.
  int rank = 0, size = 1;
  std::optional<int> local_rank, local_size;
  int node = 0;
  std::string host;         // Of rank 0, "localhost" if all ranks share it; empty: unknown.
  std::string job;          // A name that no other job has; empty: the starter has none.
  std::uint64_t place = 0;  // For scheduler::meeting_port(), if there is a name.
};

// std::nullopt: nothing has started several ranks. Throws Error(bad_environment) if variables of
// the starter are missing or contradict each other.
std::optional<StartedTasks> read_started_tasks(const Variables& variables);

}  // namespace ddprun::worker_sdk
