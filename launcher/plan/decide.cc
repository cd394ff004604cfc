#include "launcher/plan/decide.h"

#include "agent/node/command.h"
#include "agent/placement/worker_environment.h"
#include "common/system/log.h"
#include "common/system/random_id.h"
#include "launcher/plan/gather_facts.h"
#include "launcher/plan/own_python.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/resolve_name.h"

namespace ddprun::launcher {
namespace {

Result<std::vector<std::string>> resolve_program(const Options& options) {
  agent::CommandRequest request;
  request.program = options.program;
  request.arguments = options.program_arguments;
  request.module = options.module;
  request.no_python = options.no_python;
  request.run_path = options.run_path;
  request.pass_local_rank = !options.use_env;
  agent::CommandContext context = agent::current_command_context();
  const agent::PosixFileProbe files;
  if (context.python.empty() && !context.own_folders.empty()) {
    context.python = own_python(context.own_folders.front(), files);
  }
  return agent::resolve_command(request, context, files);
}

// The MachineFacts, with the one name looked up that they depend on.
MachineFacts facts_for(const Options& options, const Environment& environment) {
  MachineFacts facts = gather_facts(environment);
  if (const std::string name = name_to_resolve(options); !name.empty()) {
    facts.endpoint_addresses = resolve_name(name);
  }
  return facts;
}

}  // namespace

Result<LaunchPlan> decide(Options options, const Environment& environment) {
  if (const auto resolved = resolve_local_address(options); !resolved) return resolved.error();
  auto command = resolve_program(options);
  if (!command) return command.error();
  const std::string count = to_string(options.nproc_per_node);
  const agent::PlacementFacts machine = agent::read_placement_facts();
  const auto workers = agent::workers_per_node(count, machine);
  if (!workers) return workers.error();
  const MachineFacts facts = facts_for(options, environment);
  auto plan = make_plan(options, facts);
  if (!plan) return plan.error();
  for (const std::string& warning : plan->warnings) log::warning(warning);
  for (const std::string& warning : absent_rank_warnings(options, *workers)) log::warning(warning);
  const bool by_slurm = !value_of(environment, "SLURM_JOB_ID").empty();
  const int on_machine = *workers * plan->local_nodes;
  for (const std::string& warning : agent::count_warnings(count, on_machine, machine, by_slurm)) {
    log::warning(warning);
  }
  auto placement = place_workers(options, *workers, plan->local_nodes);
  if (!placement) return placement.error();
  if (const std::string slices = slices_text(*placement, machine.slices.value_or(0));
      !slices.empty()) {
    log::info(slices);
  }
  std::string run_id = plan->run_id ? *plan->run_id : random_hex(4);
  return LaunchPlan{.options = std::move(options),
                    .plan = std::move(*plan),
                    .host_name = facts.host_name,
                    .run_id = std::move(run_id),
                    .command = std::move(*command),
                    .local_world_size = *workers,
                    .placement = std::move(*placement)};
}

}  // namespace ddprun::launcher
