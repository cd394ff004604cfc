#pragma once
// --host-discovery: runs the script that lists the hosts, and a node on each host by ssh, as
// HostWatch decides. The rendezvous daemon is on this machine, unless --rdzv-endpoint names
// another, as hosts may be added and removed. Called by main.cc instead of running a node here.

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "common/system/child_process.h"
#include "launcher/hosts/host_watch.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// The script of --host-discovery as a process: started, read within limits, ended with all
// processes that it started. Used by discovery_run.cc.
class DiscoveryScript {
 public:
  explicit DiscoveryScript(std::vector<std::string> argv) : argv_(std::move(argv)) {}
  ~DiscoveryScript() { kill(); }
  DiscoveryScript(const DiscoveryScript&) = delete;
  DiscoveryScript& operator=(const DiscoveryScript&) = delete;

  // Returns a listing only if the script could not be started.
  std::optional<HostListing> start();
  void add_polls(std::vector<pollfd>& polls) const;
  // Reads what can be read without waiting. Returns the listing once the script has ended.
  std::optional<HostListing> serve();
  void kill();  // Does nothing if the script does not run.

 private:
  bool runs() const { return process_.runs(); }
  bool reap_killed();  // False: the killed script has not ended yet.
  void read_output();
  void read_errors();

  const std::vector<std::string> argv_;
  ChildProcess process_;
  ChildProcess killed_;  // Not reaped yet.
  HostListing listing_;
};

// Returns the exit code. A failure is a whole sentence, and nothing has been started.
Result<int> run_discovery(Options options, const Environment& environment);

}  // namespace ddprun::launcher
