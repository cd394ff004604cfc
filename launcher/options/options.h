#pragma once
// All options of a user, parsed and checked one value at a time. plan.h interprets them together
// (host or join, contradictions). main.cc calls parse() first of all.
//
// A value is from the command line, else from torchrun's PET_<NAME> variable, else it is absent or
// has the default given here. "Absent" is kept if plan.h must know whether the user gave it. Pure.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/health/stall_watch.h"
#include "agent/lines/lines.h"
#include "agent/placement/binding.h"
#include "common/error.h"
#include "common/ports.h"
#include "common/time.h"

namespace ddprun::launcher {

// --memory-folder: one per node, which outlives its workers.
struct MemoryFolder {
  std::uint64_t bytes = 0;
  bool copies = true;      // Keep a copy on another node, if there is one.
  std::uint64_t rate = 0;  // Of copying, bytes a second at most; 0: any.
  std::string at = {};     // Below this folder; empty: /dev/shm.
  bool operator==(const MemoryFolder&) const = default;
};

// --http-port, --http-address: the pages of the daemon that this node may host.
struct DaemonPages {
  std::optional<std::uint16_t> port;  // Absent: no pages; 0: any free port.
  std::string address = "127.0.0.1";
};

inline constexpr int kNodesMax = 131'072;
inline constexpr int kLocalWorkersMax = 4'096;
inline constexpr int kRestartsMax = 1'000'000;
inline constexpr int kSparesMax = 1'000;
inline constexpr int kPreloadKeepMax = 1'440;  // Minutes.
inline constexpr int kMinRanksMax = 1'000'000;
inline constexpr const char* kAuditVariable = "DDPRUN_AUDIT";
inline constexpr int kBundleEveryMax = 1'000'000'000;

using Environment = std::map<std::string, std::string, std::less<>>;

// Empty if it is not set.
inline std::string value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// The run starts with `max` nodes, or with `min` once the last call is over. One number stands for
// both.
struct NodeRange {
  int min = 1;
  int max = 1;
  bool operator==(const NodeRange&) const = default;
};

struct WorkerCount {
  enum class Kind {
    kNumber,  // Exactly `number`.
    kAuto,    // One per GPU; without GPUs, one per CPU.
    kGpu,     // One per GPU, and an error if there is none.
    kCpu,     // One per CPU that this process may run on.
  };
  Kind kind = Kind::kNumber;
  int number = 1;
  bool operator==(const WorkerCount&) const = default;
};

std::string to_string(const NodeRange& range);  // "2", "2:4"

// "8", "auto", "gpu", "cpu": as the user types it and agent/placement reads it.
std::string to_string(const WorkerCount& count);

struct Endpoint {
  std::string host;  // A name or a numeric address, an IPv6 one without its brackets.
  std::optional<std::uint16_t> port;
  bool operator==(const Endpoint&) const = default;
};

// "host:port", with brackets around an IPv6 address, without the port if there is none.
std::string to_string(const Endpoint& endpoint);

// An entry of --hosts.
struct HostEntry {
  std::string name;            // A name or an address.
  std::string user;            // Empty: ssh's choice.
  std::optional<int> workers;  // Absent: --nproc-per-node.
  bool operator==(const HostEntry&) const = default;
};

using agent::StreamMap;

enum class RdzvBackend {
  kC10d,    // Any node may host the endpoint; node ranks are the daemon's to give.
  kStatic,  // torchrun's fixed list: node rank 0 hosts, at --master-addr.
};

// --rdzv-conf. Seconds as in torchrun, fractions allowed. Absent values are the daemon's to choose.
struct RdzvConf {
  std::optional<Milliseconds> join_timeout;        // How long a node waits for the others.
  std::optional<Milliseconds> last_call_timeout;   // How long MIN nodes wait for more of them.
  std::optional<Milliseconds> close_timeout;       // How long the end of the run may take.
  std::optional<Milliseconds> heartbeat_timeout;   // A node silent for so long is lost.
  std::optional<Milliseconds> standstill_timeout;  // Also lost: a node that stands still so long.
  std::optional<Milliseconds> heartbeat_interval;  // Sets heartbeat_timeout if that is absent.
  std::optional<Milliseconds> read_timeout;        // Time limit for one answer of the daemon.
  std::optional<Milliseconds> fence_timeout;       // A node without the daemon stops its workers.
  std::optional<bool> is_host;                     // This node hosts the endpoint, or never does.
  bool authenticated = true;                       // auth=none: no token, no TLS.
  bool join_at_restart = false;                    // join=restart: newcomers end no round.
  bool store_for_all_users = false;                // store_users=any: of this machine.
  bool operator==(const RdzvConf&) const = default;
};

enum class Verbosity {
  kQuiet,    // Warnings and errors.
  kNormal,   // Also what is being waited for.
  kVerbose,  // Also every decision.
};

enum class Preflight {
  kOff,   // Nothing is checked.
  kFast,  // Beside the start; problems are logged.
  kFull,  // Before the node joins; one that is unfit does not.
};

// One option as the user gave it, for the line to paste on another machine.
struct GivenOption {
  std::string flag;                  // Its dashed name: "--nproc-per-node".
  std::optional<std::string> value;  // Absent for a switch.
};

struct Options {
  std::string invoked_as;  // argv[0].
  std::vector<GivenOption> given;

  // Nodes and workers.
  std::optional<NodeRange> nnodes;  // Absent: 1, or --local-nodes.
  WorkerCount nproc_per_node;
  std::optional<int> node_rank;
  bool standalone = false;
  std::optional<int> local_nodes;
  std::vector<HostEntry> hosts;             // Not empty: this ddprun starts one per host by ssh.
  std::vector<std::string> host_discovery;  // Not empty: the same, for the hosts that this lists.
  Milliseconds host_discovery_period{5'000};
  std::vector<std::string> ssh = {"ssh"};  // The command, in words.
  std::vector<std::string> env;            // Names of variables to carry there.
  std::vector<std::string> node_names;     // By node rank, if the scheduler provides them.
  std::string scheduler_step;              // Started, and perhaps ended, with this node (wire.h).
  std::string scheduler;                   // What started all nodes (allocation.h); may be empty.

  // How the nodes find each other.
  std::optional<Endpoint> rdzv_endpoint;
  std::vector<Endpoint> other_endpoints;  // Given after it: daemons that stand by for each other.
  // Further ports of the daemon on that host, for its port was derived from a scheduler's numbers
  // and may be taken: the node that hosts uses the first free one.
  std::vector<std::uint16_t> derived_ports;
  std::optional<RdzvBackend> rdzv_backend;
  std::optional<std::string> rdzv_id;
  RdzvConf rdzv_conf;
  std::optional<std::string> master_addr;
  std::optional<std::uint16_t> master_port;
  std::optional<std::string> local_addr;
  std::optional<std::string> advertise_addr;  // Of a router in front of this node.
  PortRange port_range;   // For all that ddprun and the SDK open on this node, but the daemon.
  bool one_port = false;  // Nodes connect to each other through the endpoint only.
  DaemonPages pages;
  std::optional<std::string> token_file;

  // When something fails.
  int max_restarts = 0;
  int spares = 0;                            // Workers per node that wait for a seat.
  int min_ranks = 0;                         // No round has fewer; 0: any number.
  std::optional<std::string> bundle_folder;  // Of steps of elastic jobs that fail.
  std::chrono::milliseconds shutdown_timeout{30'000};
  agent::StallPolicy stalls;
  std::optional<Milliseconds> chaos;  // A worker is killed so often; see agent/process/chaos.h.
  std::optional<std::uint64_t> chaos_seed;  // DDPRUN_CHAOS_SEED.
  std::optional<std::string> error_file;
  std::vector<int> signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // Never empty.
  std::vector<int> preempt_signals;  // On these the node leaves when no work is lost.

  // The program.
  bool module = false;     // program is a Python module: python3 -u -m program.
  bool no_python = false;  // program is executed as it is, even if its name ends in .py.
  bool run_path = false;   // program is a file for Python's runpy.run_path.
  bool use_env = true;     // Else --local-rank=N comes first, like in torch.distributed.launch.
  std::string role = "default";
  bool virtual_local_rank = false;
  bool oversubscribe_gpu = false;  // Several ranks per GPU.
  std::string preload;   // "auto", or modules separated by commas; empty: workers are started cold.
  int preload_keep = 0;  // Minutes for which the fork server outlives the run; 0: it does not.
  std::optional<MemoryFolder> memory_folder;
  agent::StdinChoice stdin_for{.local_rank = 0};
  agent::NumaBinding numa_binding = agent::NumaBinding::kNone;
  std::optional<int> omp_num_threads;  // 0: as many as the worker has cores.
  // Variables of this node's processes and their workers, for the SDK: --audit, --bundle-every.
  std::map<std::string, std::string> exported;
  std::string program;
  std::vector<std::string> program_arguments;  // As typed, also if they look like flags.

  // Output.
  std::optional<std::string> log_dir;
  agent::OutputChoice output;
  agent::LineFormat log_format = agent::LineFormat::kText;
  bool fold_lines = false;
  bool report = false;  // At the end, print where the time of this node's ranks was spent.
  std::optional<std::string> report_html;  // For all ranks, as a page.
  Verbosity verbosity = Verbosity::kNormal;
  Preflight preflight = Preflight::kOff;
  bool dry_run = false;
};

// The signals that end this node's part in the run, at once or soon.
std::vector<int> handled_signals(const Options& options);

// --help, --version, --print-completion: text for standard output; the program then ends with code
// 0.
struct PrintAndExit {
  std::string text;
};

using ParseOutcome = std::variant<Options, PrintAndExit>;

// A failure is Errc::kBadOption and its context one whole sentence to show the user; exit code 2.
Result<ParseOutcome> parse(int argc, const char* const* argv, const Environment& environment);

}  // namespace ddprun::launcher
