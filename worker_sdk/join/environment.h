#pragma once
// Reads and checks the environment that ddprun and torchrun give to a worker, or without them a
// scheduler that starts each rank (started_tasks.h). Pure: the variables are passed as a map.
// ProcessGroup::init calls this before it uses the network.

#include <cstdint>
#include <string>
#include <vector>

#include "common/port_range.h"
#include "common/relay_place.h"
#include "ddprun/process_group.h"
#include "worker_sdk/join/variables.h"

namespace ddprun::worker_sdk {

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
  // kTcp only: `port` is one of those of `place`, to be found by the job's name (store_search.h); 0
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
