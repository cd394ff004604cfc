#pragma once
// --hosts a,alice@b:4: who is in it, and what each of them is told. Pure. Called by
// read_options.cc, hosts_run.cc and, for --host-discovery, by discovery_run.cc.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// Slurm's way to write many host names: "gpu[01-03,7],login" -> gpu01 gpu02 gpu03 gpu7 login. Pure.
// Called by allocation.cc.
inline constexpr std::size_t kHostListBytesMax = 131'072;  // As long as one variable can be.
inline constexpr std::size_t kHostNameBytesMax = 255;

// All names, in the order of the list, which is that of Slurm's node numbers. Several brackets in
// one name count through like the digits of a number, the last one fastest. A failure says what is
// wrong where.
Result<std::vector<std::string>> expand_host_list(std::string_view text);

// "a,b:4,[::1]:2,alice@c": names or addresses, each with the number of its workers behind a colon.
Result<std::vector<HostEntry>> parse_hosts(std::string_view text);

// One of them.
Result<HostEntry> parse_host(std::string_view text);

// "alice@b": what ssh is given.
std::string ssh_target(const HostEntry& host);

// What cannot be said together with --hosts or --host-discovery; nothing if all is well, or neither
// is given.
std::optional<Failure> contradiction_of_hosts(const Options& options);

// Where all nodes of a run started by --hosts meet, and its name.
struct HostsMeeting {
  Endpoint endpoint;
  std::string run_id;
  int nodes = 1;  // That there are, with spares.
};

// Where they meet, as --rdzv-endpoint takes it, with the daemons that stand by.
std::string endpoints_text(const Options& options, const HostsMeeting& meeting);

// The command line of the node `node_rank` on `host`: the user's own, but for what is each node's.
// Without a rank it hosts no endpoint, and gets the group rank that is free.
std::vector<std::string> node_argv(const Options& options, const HostsMeeting& meeting,
                                   const HostEntry& host, std::optional<int> node_rank);

// The variables that a node is given besides its own: "NAME=value" each. Of those that training
// reads by name, and those of --env.
std::vector<std::string> carried_environment(const Options& options,
                                             const Environment& environment);

}  // namespace ddprun::launcher
