#include "launcher/options/hosts.h"

#include <algorithm>
#include <array>
#include <set>

#include "launcher/options/option_values.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kHostsMax = 4'096;  // ssh connections from one machine.

// PYTHONPATH, NCCL_DEBUG, ...: read by training, and not specific to this machine.
constexpr std::array<std::string_view, 8> kCarried = {"NCCL_", "GLOO_",  "TORCH", "OMP_",
                                                      "CUDA_", "PYTHON", "UCX_",  "DDPRUN_"};

// Given to each node with its own value, or used by the launcher alone.
constexpr std::string_view kOfTheLauncher[] = {"--hosts",
                                               "--host-discovery",
                                               "--host-discovery-period",
                                               "--ssh",
                                               "--env",
                                               "--nnodes",
                                               "--nproc-per-node",
                                               "--local-addr",
                                               "--advertise-addr",
                                               "--rdzv-endpoint",
                                               "--rdzv-id",
                                               "--rdzv-conf",
                                               "--token-file",
                                               "--dry-run"};

bool is_user_name(std::string_view text) {
  return !text.empty() && !text.starts_with('-') &&
         std::all_of(text.begin(), text.end(), [](unsigned char letter) {
           return std::isalnum(letter) || letter == '_' || letter == '-' || letter == '.';
         });
}

std::string conf_of_node(const Options& options, std::optional<int> node_rank) {
  std::string conf;
  for (const GivenOption& option : options.given) {
    if (option.flag == "--rdzv-conf") conf = option.value.value_or("");
  }
  if (options.rdzv_endpoint && node_rank) return conf;
  return conf + (conf.empty() ? "" : ",") + "is_host=" + (node_rank == 0 ? "1" : "0");
}

bool is_carried(const Options& options, std::string_view name) {
  if (name.starts_with("DDPRUN_TOKEN") || name == "DDPRUN_CONFIG") return false;
  if (std::find(options.env.begin(), options.env.end(), name) != options.env.end()) return true;
  return std::any_of(kCarried.begin(), kCarried.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::optional<Failure> contradiction_of_discovery(const Options& options) {
  const auto both = [](const std::string& flag, const std::string& why) {
    return usage("--host-discovery and " + flag + " exclude each other: " + why);
  };
  if (!options.hosts.empty()) return both("--hosts", "the script lists the hosts");
  if (options.standalone) return both("--standalone", "--standalone is one node");
  if (options.local_nodes) return both("--local-nodes", "each host is a node");
  if (options.node_rank) return both("--node-rank", "nodes get the rank that is free");
  if (options.master_addr) return both("--master-addr", "the nodes meet on this machine");
  if (options.rdzv_conf.is_host) return both("--rdzv-conf is_host", "this machine is it");
  if (options.rdzv_backend == RdzvBackend::kStatic) {
    return both("--rdzv-backend static", "nodes come and go");
  }
  if (!options.nnodes || options.nnodes->min == options.nnodes->max) {
    return usage("--host-discovery needs --nnodes MIN:MAX: how few and how many hosts are used");
  }
  return std::nullopt;
}

}  // namespace

Result<HostEntry> parse_host(std::string_view text) {
  HostEntry host;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    host.user = text.substr(0, at);
    if (!is_user_name(host.user)) return usage("the text before the @ is not a user name");
    text.remove_prefix(at + 1);
  }
  const Result<Endpoint> place = parse_endpoint(text);  // The port is our number of workers.
  if (!place || place->host.starts_with('-')) {
    return usage("give HOST, HOST:WORKERS or USER@HOST, separated by commas");
  }
  host.name = place->host;
  if (!place->port) return host;
  if (*place->port < 1 || *place->port > kLocalWorkersMax) {
    return usage("give from 1 to " + std::to_string(kLocalWorkersMax) + " workers behind " +
                 host.name);
  }
  host.workers = *place->port;
  return host;
}

Result<std::vector<HostEntry>> parse_hosts(std::string_view text) {
  std::vector<HostEntry> hosts;
  std::set<std::string> names;
  for (;;) {
    const std::size_t comma = text.find(',');
    Result<HostEntry> host = parse_host(text.substr(0, comma));
    if (!host) return host.error();
    if (!names.insert(host->name).second) return usage(host->name + " is given twice");
    hosts.push_back(std::move(*host));
    if (hosts.size() > kHostsMax) {
      return usage("give at most " + std::to_string(kHostsMax) + " hosts");
    }
    if (comma == std::string_view::npos) return hosts;
    text.remove_prefix(comma + 1);
  }
}

std::string ssh_target(const HostEntry& host) {
  return host.user.empty() ? host.name : host.user + "@" + host.name;
}

std::optional<Failure> contradiction_of_hosts(const Options& options) {
  if (!options.host_discovery.empty()) return contradiction_of_discovery(options);
  if (options.hosts.empty()) return std::nullopt;
  const auto both = [](const std::string& flag, const std::string& why) {
    return usage("--hosts and " + flag + " exclude each other: " + why);
  };
  if (options.standalone) return both("--standalone", "--standalone is one node");
  if (options.local_nodes) return both("--local-nodes", "each host is a node");
  if (options.node_rank) return both("--node-rank", "the order of the hosts is that of the ranks");
  if (options.master_addr) return both("--master-addr", "the first host is where the nodes meet");
  if (options.local_addr) return both("--local-addr", "it would be every host's address");
  if (options.advertise_addr) return both("--advertise-addr", "it would be every host's address");
  if (options.rdzv_conf.is_host) return both("--rdzv-conf is_host", "the first host is it");
  if (options.rdzv_backend == RdzvBackend::kStatic) {
    return both("--rdzv-backend static", "the first host is where the nodes meet");
  }
  const int hosts = static_cast<int>(options.hosts.size());
  if (options.nnodes && options.nnodes->min > hosts) {
    return usage("--nnodes " + std::to_string(options.nnodes->min) + " needs more than the " +
                 std::to_string(hosts) + " of --hosts");
  }
  return std::nullopt;
}

std::string endpoints_text(const Options& options, const HostsMeeting& meeting) {
  std::string text = to_string(meeting.endpoint);
  for (const Endpoint& other : options.other_endpoints) text += "," + to_string(other);
  return text;
}

std::vector<std::string> node_argv(const Options& options, const HostsMeeting& meeting,
                                   const HostEntry& host, std::optional<int> node_rank) {
  std::vector<std::string> argv = {"ddprun"};
  for (const GivenOption& option : options.given) {
    const auto end = std::end(kOfTheLauncher);
    if (std::find(std::begin(kOfTheLauncher), end, option.flag) != end) continue;
    argv.push_back(option.flag);
    if (option.value) argv.push_back(*option.value);
  }
  const NodeRange nodes = options.nnodes.value_or(NodeRange{meeting.nodes, meeting.nodes});
  const std::string workers =
      host.workers ? std::to_string(*host.workers) : to_string(options.nproc_per_node);
  argv.insert(argv.end(), {"--nnodes", to_string(nodes), "--nproc-per-node", workers});
  argv.insert(argv.end(),
              {"--rdzv-endpoint", endpoints_text(options, meeting), "--rdzv-id", meeting.run_id});
  if (const std::string conf = conf_of_node(options, node_rank); !conf.empty()) {
    argv.insert(argv.end(), {"--rdzv-conf", conf});
  }
  if (node_rank && *node_rank < nodes.max) {
    argv.insert(argv.end(), {"--node-rank", std::to_string(*node_rank)});
  }
  argv.insert(argv.end(), {"--", options.program});
  argv.insert(argv.end(), options.program_arguments.begin(), options.program_arguments.end());
  return argv;
}

std::vector<std::string> carried_environment(const Options& options,
                                             const Environment& environment) {
  std::vector<std::string> entries = {"DDPRUN_CONFIG="};  // The flags contain its values by now.
  for (const auto& [name, value] : environment) {
    if (is_carried(options, name)) entries.push_back(name + "=" + value);
  }
  return entries;
}

}  // namespace ddprun::launcher
