#pragma once
// --hosts a,alice@b:4: which hosts are in it, and what each of them gets. Pure. Called by
// flags.cc, hosts_run.cc and, for --host-discovery, by discovery_run.cc.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// "a,b:4,[::1]:2,alice@c": names or addresses, each with the number of its workers behind a colon.
Result<std::vector<HostEntry>> parse_hosts(std::string_view text);

// Parses one entry.
Result<HostEntry> parse_host(std::string_view text);

// "alice@b": the argument for ssh.
std::string ssh_target(const HostEntry& host);

// What cannot be combined with --hosts or --host-discovery; std::nullopt if there is no
// contradiction, or neither is given.
std::optional<Failure> contradiction_of_hosts(const Options& options);

// The place where all nodes of a run started by --hosts meet, and the run's name.
struct HostsMeeting {
  Endpoint endpoint;
  std::string run_id;
  int nodes = 1;  // All nodes, including spares.
};

// The meeting place, as --rdzv-endpoint takes it, with the standby daemons.
std::string endpoints_text(const Options& options, const HostsMeeting& meeting);

// The command line of the node `node_rank` on `host`: the user's own, except for what differs per
// node. Without a rank it hosts no endpoint, and gets a group rank that is free.
std::vector<std::string> node_argv(const Options& options, const HostsMeeting& meeting,
                                   const HostEntry& host, std::optional<int> node_rank);

// Environment passed to a node in addition to its own, as NAME=value: what training reads by name,
// and --env.
std::vector<std::string> carried_environment(const Options& options,
                                             const Environment& environment);

}  // namespace ddprun::launcher
