#pragma once
// Reads and checks the environment that ddprun and torchrun give to a worker, or without them a
// scheduler that starts each rank (StartedTasks). Pure: the variables are passed as a map.
// ProcessGroup::init calls this before it uses the network.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ports.h"
#include "ddprun/process_group.h"

namespace ddprun::worker_sdk {

// Reads single variables of an environment that is passed as a map.
using Variables = std::map<std::string, std::string>;

inline constexpr int kWorldSizeMax = 1 << 20;

// Throws Error(bad_environment).
[[noreturn]] void throw_environment(const std::string& text);

// std::nullopt if the variable is not set, or empty.
std::optional<std::string> text_of(const Variables& variables, const std::string& name);

// The variable's number; std::nullopt if the variable is not set. Throws Error(bad_environment),
// naming the variable, if its value is not a number from `min` to `max`.
std::optional<int> number_of(const Variables& variables, const std::string& name, int min, int max);

// What the environment contains if a scheduler or mpirun started this process as one of several
// ranks, without ddprun or torchrun in between. Read if RANK and WORLD_SIZE are not set: those of a
// launcher always win.
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

// Where the job's store is.
struct Rendezvous {
  enum class Kind {
    kAlone,  // World of one: a store of this process.
    kTcp,    // host:port.
    kFile,   // path.
    kGiven,  // The program passes the store; `host` is where others may be, or empty.
  };
  Kind kind = Kind::kAlone;
  std::string host;
  std::uint16_t port = 0;
  std::string path;
  bool hosted_by_rank_0 =
      false;  // kTcp only. False: the agent hosts it (TORCHELASTIC_USE_AGENT_STORE).
  // kTcp only: `port` is one of those of `place`, to be found by the job's name (join.cc); 0
  // until then. Without a name the process that started all ranks, on one host, gives one.
  bool is_searched = false;
  std::string job = {};
  std::uint64_t place = 0;
};

// What is requested of the backend nccl.
struct GpuRequest {
  int device = -1;           // -1: by local rank.
  int max_ctas = 0;          // DDPRUN_NCCL_MAX_CTAS, else the options'; 0: no limit.
  int ranks_per_root = 128;  // DDPRUN_NCCL_RANKS_PER_ROOT.
  bool may_share = false;    // NCCL is configured for ranks that share a GPU.
  bool windows = true;       // DDPRUN_NCCL_WINDOWS: symmetric windows, if NCCL has them.
  bool may_shrink = false;   // The options'.
  bool verbose = false;      // NCCL_DEBUG is INFO or TRACE.
};

struct Plan {
  Identity identity;
  bool local_rank_known =
      false;  // From LOCAL_RANK and LOCAL_WORLD_SIZE; else found in the meeting.
  Rendezvous rendezvous;
  std::string backend;  // "auto", "shm", "gloo", "cpu", "nccl" or "self": DDPRUN_BACKEND, else the
                        // options'.
  std::string host;     // DDPRUN_HOST, else the options'; empty: the machine's name.
  std::string interface;  // DDPRUN_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME, else empty.
  PortRange ports;        // DDPRUN_PORT_RANGE: for what this rank listens at.
  RelayPlace relay;       // DDPRUN_RELAY, as the agent sets it.
  GpuRequest gpu;
  std::string address;  // Address of this host for the other ranks, numeric; empty: to be found.
  // For a group split off another group, or over a store of the program's own.
  std::string prefix;            // Added to the key prefix that all groups have.
  std::vector<int> job_ranks;    // By rank: the rank in the job.
  std::vector<int> shown_ranks;  // Roster::shown_ranks.

  int rank_in_job() const {  // -1: the group is the whole job.
    return job_ranks.empty() ? -1 : job_ranks.at(static_cast<std::size_t>(identity.rank));
  }
};

// Throws Error(bad_environment) naming the variable, or Error(bad_argument) naming the option.
Plan read_environment(const Variables& variables, const InitOptions& options);

}  // namespace ddprun::worker_sdk
