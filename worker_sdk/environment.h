#pragma once
// What ddprun and torchrun tell a worker through its environment, checked. Pure: the variables come
// in as a map. ProcessGroup::init calls this before it touches the network.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun::worker_sdk {

using Variables = std::map<std::string, std::string>;

// Where the store of the job is.
struct Rendezvous {
  enum class Kind {
    kAlone,  // World of one: a store of this process.
    kTcp,    // host:port.
    kFile,   // path.
  };
  Kind kind = Kind::kAlone;
  std::string host;
  std::uint16_t port = 0;
  std::string path;
  bool hosted_by_rank_0 =
      false;  // kTcp only. False: the agent hosts it (TORCHELASTIC_USE_AGENT_STORE).
};

struct Plan {
  Identity identity;
  bool local_rank_known =
      false;  // By LOCAL_RANK and LOCAL_WORLD_SIZE; else found out with the others.
  Rendezvous rendezvous;
  std::string
      backend;       // "auto", "shm", "gloo", "cpu" or "self": DDPRUN_BACKEND, else the options'.
  std::string host;  // DDPRUN_HOST, else the options'; empty: the machine's name.
  std::string interface;  // DDPRUN_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME, else empty.
  // Of a group split off another one.
  std::string prefix;          // Of its keys in the store, after the one that all groups have.
  std::vector<int> job_ranks;  // By rank: its rank in the job.
};

// Throws Error(bad_environment) naming the variable, or Error(bad_argument) naming the option.
Plan read_environment(const Variables& variables, const InitOptions& options);

}  // namespace ddprun::worker_sdk
