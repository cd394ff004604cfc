#pragma once
// Options and facts about this machine -> what this ddprun does: run alone, host the endpoint, or
// join one. Pure: no socket is opened here. decide.cc gathers the MachineFacts, run/launch.cc
// carries the RendezvousPlan out and prints paste_line().
//
//   no other node can join (--standalone, or nnodes MAX <= --local-nodes, without an endpoint)
//        one local node  -> kStandalone: rendezvous inside this process
//        more of them    -> kHost on loopback, any port
//   others can join, no --rdzv-endpoint
//        none of --master-addr, --master-port, --node-rank, --rdzv-backend static
//                        -> kHost on all interfaces, port 29400 or else any
//        any of them: torchrun's static command line. Daemon and workers' store are both at
//        MASTER_ADDR:MASTER_PORT (29500).
//                        -> node rank 0 hosts, others join; without --node-rank the owner of the
//                        address hosts
//   --rdzv-endpoint given (--master-port is then the workers')
//        is_host=1, or node rank 0 of --rdzv-backend static        -> kHost
//        is_host=0, or --node-rank above 0 without c10d            -> kJoin
//        the host part names this machine -> kHost, or kJoin if a process listens there already
//        several endpoints: daemons that stand by for each other   -> kJoin
//        else                                                      -> kJoin

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/placement/binding.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// The facts about this machine that make_plan() uses, and the meaning of a host's name or address
// on it.
struct MachineFacts {
  std::string host_name;
  std::vector<std::string> own_addresses;  // Numeric, without loopback, best first.
  std::vector<std::string>
      endpoint_addresses;                    // Of name_to_resolve(); empty if it was not looked up.
  bool token_in_environment = false;         // DDPRUN_TOKEN is set and not empty.
  std::string token_file;                    // DDPRUN_TOKEN_FILE, or empty.
  bool in_pod = false;                       // In Kubernetes, where output goes only to the log.
  std::string socket_interface;              // DDPRUN_SOCKET_IFNAME, or empty.
  std::vector<std::string> interfaces = {};  // That are up and have an address.
};

bool is_any_address(std::string_view host);  // "All interfaces", in a server's notation.
bool has_address(const MachineFacts& facts, std::string_view address);
bool names_this_machine(std::string_view host, const MachineFacts& facts);

inline constexpr std::uint16_t kEndpointPort = 29'400;  // Like torchrun's c10d backend.
inline constexpr std::uint16_t kMasterPort = 29'500;    // Like torchrun's static backend.

struct RendezvousPlan {
  enum class Mode {
    kStandalone,  // Rendezvous in this process; nothing listens for other nodes.
    kHost,        // Listen at listen_host:endpoint.port, then join it.
    kJoin,        // Connect to endpoint.
  };
  // What kHost does if its port is in use.
  enum class IfTaken {
    kAnyPort,  // No other node knows a port yet: take any and print that.
    kJoin,     // Another node of this machine, or an operator's daemon, was first: join it.
    kFail,     // The user wants this node to host: name the port's owner.
  };
  enum class Token {
    kNone,         // kStandalone, or auth=none.
    kMint,         // Make one; it is shown in paste_line() only.
    kEnvironment,  // DDPRUN_TOKEN.
    kFile,         // token_file.
  };

  Mode mode = Mode::kStandalone;
  IfTaken if_taken = IfTaken::kAnyPort;
  Token token = Token::kNone;
  std::string token_file;
  NodeRange nnodes;
  int local_nodes = 1;  // Agents to start here.
  bool others_may_come = false;
  std::optional<int> node_rank;

  Endpoint endpoint;                      // For other nodes. Port 0: any, known after listening.
  std::vector<Endpoint> other_endpoints;  // Further places of the daemon for kJoin.
  // Further ports on that host: kHost uses the first free one, kJoin tries them all, for the daemon
  // of another run may be at one of them.
  std::vector<std::uint16_t> derived_ports;
  std::string listen_host;  // Numeric; empty: all interfaces.
  std::string local_host;   // The address of kHost's daemon for this machine's own agents.
  std::string
      node_address;  // This node's address for others; empty: the control link's own address.
  // If that address is a router's: where the workers' store listens; empty: at all addresses.
  std::optional<std::string> store_listen_host;
  std::optional<std::uint16_t> store_port;  // The MASTER_PORT that the user chose; absent: any.
  // Of a static command line, or with --one-port: MASTER_PORT is the endpoint's.
  bool store_at_endpoint = false;
  // MASTER_ADDR of this node's workers, if the node that hosts has a static command line.
  std::string store_address;
  // The other nodes get to know this one's networks, so that data may go over the fastest.
  bool offers_networks = false;
  std::optional<std::string> run_id;  // Absent: make one, no other node needs it.

  std::vector<std::string> warnings;
};

// The host name that must be looked up before make_plan() can decide whether it is this machine's,
// and under which of its addresses the others will reach it; empty if none. If the look-up fails,
// the name is taken as another machine's.
std::string name_to_resolve(const Options& options);

// A failure is Errc::kBadOption with one sentence that names the two options that contradict each
// other.
Result<RendezvousPlan> make_plan(const Options& options, const MachineFacts& facts);

// A sentence for each flag that selects output by local ranks which no worker has. torchrun accepts
// them silently, so they end no run.
std::vector<std::string> absent_rank_warnings(const Options& options, int workers_per_node);

// Decides where this node's token is from, by plan.mode and plan.endpoint. A failure if it has
// none.
std::optional<Failure> choose_token(const Options& options, const MachineFacts& facts,
                                    RendezvousPlan& plan);

// The error for a node that must join but has no token, for kHost too if IfTaken::kJoin applies.
Failure missing_token(const Endpoint& endpoint, bool in_pod = false);

// The line for the other machines. `token` is shown if it was minted, always as a variable of that
// one command, never as an argument, which every user of the machine could read.
std::string paste_line(const RendezvousPlan& plan, const Options& options, std::string_view token);

// By worker of this machine, through its local nodes.
struct Placement : agent::WorkerPlacement {
  std::vector<std::string> gpus = {};  // To show: "GPU 3 (0000:3b:00.0, NUMA node 1)".
};

// All decisions before anything is started: shown by --dry-run, carried out by a run. Made by
// decide.h.
struct LaunchPlan {
  Options options;
  RendezvousPlan plan;
  std::string host_name;
  std::string run_id;
  std::vector<std::string> command;  // argv[0] resolved.
  int local_world_size = 1;          // Workers per node.
  Placement placement;
};

}  // namespace ddprun::launcher
