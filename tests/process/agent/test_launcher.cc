// The guardian and agents of ddprun without rendezvous, for process tests:
//   agent_test_launcher <nodes> <workers> <service, "deaf" or "-"> <command...>
// starts <workers> times the command on each of <nodes> "nodes", and the command's program with
// <service> as its argument as a service. An agent ends with the first exit code that is not 0.
// SIGTERM, SIGINT and SIGHUP are passed on to workers as SIGTERM, then SIGKILL at once; "deaf"
// agents ignore the first two.

#include <signal.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdlib>
#include <string>

#include "agent/process/parent_watch.h"
#include "agent/workers/child_start.h"
#include "agent/workers/posix_process_host.h"
#include "common/system/log.h"
#include "launcher/guard/guardian.h"

namespace {

using namespace ddprun::agent;
using namespace ddprun::launcher;

struct Request {
  int workers;
  std::vector<std::string> command;
  int guardian;
  bool deaf;
};

int run_agent(const Request& request) {
  boost::asio::io_context loop(1);
  PosixProcessHost host(loop);
  ParentWatch parent(loop);
  int code = 0;
  parent
      .start(request.guardian,
             [&] {
               host.kill_everything();
               std::_Exit(1);
             })
      .value();
  host.on_exit = [&](const ddprun::WorkerDeath& exit, auto) {
    const int worker_code = exit.signal != 0 ? 128 + exit.signal : exit.exit_code;
    if (code == 0) code = worker_code;
    if (worker_code != 0) host.signal_workers(SIGKILL);
    if (host.living() == 0) loop.stop();
  };
  boost::asio::signal_set signals(loop, SIGHUP);
  for (const int signal : {SIGTERM, SIGINT}) {
    if (request.deaf) {
      ::signal(signal, SIG_IGN);
    } else {
      signals.add(signal);
    }
  }
  signals.async_wait([&](boost::system::error_code error, int) {
    if (error) return;
    host.signal_workers(SIGTERM);
    host.signal_workers(SIGKILL);
  });
  for (int rank = 0; rank < request.workers; ++rank) {
    WorkerSpec spec{rank, request.command, current_environment()};
    const auto started = host.spawn(spec);
    if (started.has_error()) {
      ddprun::log::error(to_string(started.error()));
      return 1;
    }
  }
  loop.run();
  host.kill_strays();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  ddprun::log::start("launcher", ddprun::log::Level::kInfo);
  const std::string service = argv[3];
  const Request request{std::atoi(argv[2]), {argv + 4, argv + argc}, ::getpid(), service == "deaf"};
  GuardianPlan plan;
  plan.service_grace = std::chrono::milliseconds(200);
  plan.respawns_max = 2;
  if (service != "-" && service != "deaf") {
    plan.children.push_back({.kind = GuardedChild::Kind::kService,
                             .name = "the daemon",
                             .argv = {argv[4], service},
                             .environment = current_environment()});
  }
  for (int node = 0; node < std::atoi(argv[1]); ++node) {
    plan.children.push_back({.name = "node " + std::to_string(node) + "'s agent",
                             .body = [&] { return run_agent(request); }});
  }
  return guard(plan);
}
