#pragma once
// Options and this machine -> a LaunchPlan. Reads the file system, the interfaces, the GPUs and the
// name service; starts nothing. Called by run/launch.cc.

#include <memory>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "launcher/guard/guardian.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// Opens the endpoint if this node hosts it, and describes how its daemon is started.

// The listening socket outlives the daemon: clients that connect while a killed daemon is being
// replaced are served by the next one.
struct HostedEndpoint {
  UniqueFd listening;
  UniqueFd token_file;  // A memory file; none with auth=none.
  // A pair of sockets by which the daemon hands clients of the workers' store over to the agent;
  // none with auth=none.
  UniqueFd store_giver = {}, store_taker = {};
  std::string only_run = {};  // The daemon serves only this run; empty: all runs.
  DaemonPages pages = {};
};

// Listens. If the port is taken and the plan allows it, changes the plan: to another port, or to
// joining the present owner, and then returns null. A port for `pages` that is taken is a failure.
Result<std::unique_ptr<HostedEndpoint>> open_endpoint(RendezvousPlan& plan,
                                                      const std::string& token,
                                                      const DaemonPages& pages);

// The token the plan names: minted, read from its file, or `given` by the environment; empty for
// none. With a token this process's memory is hidden from now on.
Result<std::string> obtain_token(const RendezvousPlan& plan, const std::string& given);

// `state_folder` is for its journal; empty: it keeps none, and one that is killed forgets the run.
GuardedChild daemon_child(const HostedEndpoint& endpoint, const std::string& state_folder,
                          bool verbose);

// Warnings are logged. A failure is one sentence for the user.
Result<LaunchPlan> decide(Options options, const Environment& environment);

// The places of the workers of this machine: processors, GPU, number of threads.
Result<Placement> place_workers(const Options& options, int workers_per_node, int local_nodes);

// If GPUs are in MIG mode, what that means for the workers; empty: none is. `slices`: how many they
// may use.
std::string slices_text(const Placement& placement, int slices);

// "placement:   worker 0: GPU 0, processors 0-3, 4 threads\n"; empty if there is none.
std::string to_text(const Placement& placement, int workers_per_node);

}  // namespace ddprun::launcher
