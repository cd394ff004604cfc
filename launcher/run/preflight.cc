#include "launcher/run/preflight.h"

#include <unistd.h>

#include "common/system/log.h"
#include "launcher/doctor/health_screen.h"
#include "launcher/doctor/network.h"
#include "launcher/doctor/probes.h"

namespace ddprun::launcher {
namespace {

// The program is compared between nodes only, and the port has been opened, or is another node's.
doctor::HealthReport examine(doctor::Depth depth, const LaunchPlan& plan) {
  doctor::NodeFacts node{.host = plan.host_name};
  const MemoryFolder memory = plan.options.memory_folder.value_or(MemoryFolder());
  node.facts = doctor::gather_facts_of_node(depth, {.memory_at = memory.at});
  node.facts.set(doctor::fact::kPort, std::int64_t{0});
  const bool several =
      plan.plan.mode != RendezvousPlan::Mode::kStandalone && plan.plan.others_may_come;
  return doctor::report_of_node(node, {.workers = plan.local_world_size * plan.plan.local_nodes,
                                       .several = several,
                                       .memory_folder = static_cast<std::int64_t>(memory.bytes) *
                                                        std::int64_t{plan.plan.local_nodes}});
}

}  // namespace

Result<void> check_fitness(const LaunchPlan& plan) {
  const doctor::HealthReport report = examine(doctor::Depth::kFull, plan);
  for (const std::string& sentence : doctor::warnings_of(report, doctor::Status::kWarn)) {
    log::warning(sentence);
  }
  if (doctor::worst_of(report) != doctor::Status::kFail) return {};
  return Failure{Errc::kNotFound, plan.host_name +
                                      " is unfit for this run, see above and ddprun doctor; "
                                      "--preflight fast starts all the same"};
}

GuardedChild preflight_child(const LaunchPlan& plan) {
  GuardedChild child;
  child.kind = GuardedChild::Kind::kService;
  child.name = "the preflight check";
  child.body = [&plan]() -> int {
    const doctor::HealthReport report = examine(doctor::Depth::kFast, plan);
    for (const std::string& sentence : doctor::warnings_of(report, doctor::Status::kWarn)) {
      log::warning(sentence);
    }
    for (;;) ::pause();  // A service that ends is started again; SIGTERM ends this one.
  };
  return child;
}

}  // namespace ddprun::launcher
