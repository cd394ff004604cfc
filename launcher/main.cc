// ddprun: what a user types. Reads the command line, makes a plan, opens the endpoint if this node
// hosts it, and forks the processes that do the work; then it only watches over them.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "agent/node/command.h"
#include "agent/node/verdict_file.h"
#include "agent/placement/placement.h"
#include "agent/process/cgroup.h"
#include "agent/process/spawn.h"
#include "common/system/log.h"
#include "common/system/random_id.h"
#include "common/system/secrets.h"
#include "common/system/start_signals.h"
#include "launcher/guard/guardian.h"
#include "launcher/hosts/control_stdin.h"
#include "launcher/hosts/hosts_run.h"
#include "launcher/options/allocation.h"
#include "launcher/options/config_file.h"
#include "launcher/options/options.h"
#include "launcher/plan/dry_run.h"
#include "launcher/plan/endpoint.h"
#include "launcher/plan/facts.h"
#include "launcher/plan/nccl_profile.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/resolve_name.h"
#include "launcher/run/exit_status.h"
#include "launcher/run/node.h"
#include "launcher/run/report.h"
#include "launcher/run/scratch.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kJobVariable = "DDPRUN_JOB";

// The token is in it, and from now on nowhere else: neither in what is forked nor in /proc.
Environment own_environment() {
  Environment environment;
  if (auto token = take_variable(kTokenVariable); token && !token->empty()) {
    hide_memory();
    environment.emplace(kTokenVariable, *token);
  }
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

log::Level log_level(Talk talk) {
  switch (talk) {
    case Talk::kQuiet: return log::Level::kWarning;
    case Talk::kNormal: return log::Level::kInfo;
    case Talk::kVerbose: return log::Level::kDebug;
  }
  return log::Level::kInfo;
}

log::Format log_format(const Options& options) {
  const bool json = options.log_format == agent::LineFormat::kJson;
  return json ? log::Format::kJson : log::Format::kText;
}

int fail(const Failure& failure) {
  const bool whole_sentence = failure.code == Errc::kBadOption || failure.code == Errc::kNotFound;
  log::error(whole_sentence ? failure.context : to_string(failure));
  return whole_sentence ? kExitUsage : kExitFailed;
}

Result<std::vector<std::string>> resolve_program(const Options& options) {
  agent::CommandRequest request;
  request.program = options.program;
  request.arguments = options.program_arguments;
  request.module = options.module;
  request.no_python = options.no_python;
  request.run_path = options.run_path;
  request.pass_local_rank = !options.use_env;
  return agent::resolve_command(request, agent::current_command_context(), agent::PosixFileProbe());
}

int print_dry_run(const NodeContext& context) {
  const DryRun run{.options = context.options,
                   .plan = context.plan,
                   .host_name = context.host_name,
                   .run_id = context.run_id,
                   .command = context.command,
                   .local_world_size = context.local_world_size,
                   .parent = agent::current_environment()};
  std::fputs(dry_run_text(run).c_str(), stdout);
  std::fputs(to_text(context.placement, context.local_world_size).c_str(), stdout);
  return kExitOk;
}

void say_how_to_join(const NodeContext& context) {
  if (context.plan.mode != Plan::Mode::kHost || !context.plan.others_may_come) return;
  if (!context.options.scheduler.empty()) return;  // It starts the others itself.
  log::info("on " +
            std::string(context.plan.nnodes.max > 2 ? "each other node" : "the other node") +
            ", run:\n\n  " + paste_line(context.plan, context.options, context.token) + "\n");
}

void offer_nccl_profiler(const Environment& environment) {
  std::string plugin;
  for (const std::string& folder : agent::current_command_context().own_folders) {
    const std::string path = folder + "/" + kNcclPluginFile;
    if (plugin.empty() && ::access(path.c_str(), R_OK) == 0) plugin = path;
  }
  const NcclProfilePlan plan = plan_nccl_profile(environment, plugin);
  if (!plan.warning.empty()) log::warning(plan.warning);
  if (!plan.plugin.empty()) ::setenv(kNcclPluginVariable, plan.plugin.c_str(), 1);
}

// Empty where the kernel gives us none: then death signals and sub-reapers do what they can.
std::string make_job_cgroup() {
  const auto made =
      agent::make_cgroup(agent::own_cgroup_folder(), agent::job_cgroup_name(::getpid()));
  if (!made) log::debug("without a cgroup of its own: " + to_string(made.error()));
  return made ? *made : "";
}

agent::GuardedChild agent_child(const NodeContext& context, int index) {
  agent::GuardedChild node;
  node.name = agent_name(context, index);
  node.body = [&context, index] {
    const bool several = context.plan.local_nodes > 1;
    log::start(several ? "ddprun node " + std::to_string(index) : "ddprun",
               log_level(context.options.talk), log_format(context.options));
    return run_node(context, index);
  };
  return node;
}

// Starts everything and watches over it until the run is over.
int guard_run(NodeContext context, const HostedEndpoint* endpoint, ControlStdin* control) {
  RunFolders folders;
  agent::GuardianPlan guardian;
  context.launcher_pid = ::getpid();
  // Whatever this job ever starts can be told from everything else by it.
  const std::string job = random_hex(8);
  ::setenv(kJobVariable, job.c_str(), 1);
  auto roster = agent::Roster::make(static_cast<std::size_t>(context.local_world_size) *
                                    static_cast<std::size_t>(context.plan.local_nodes));
  if (!roster) return fail(roster.error());
  context.roster = *roster;
  context.places = folders.places();
  guardian.keeper = agent::KeeperTask{.mark = kJobVariable + ("=" + job),
                                      .cgroup = agent::job_cgroup_path(::getpid()),
                                      .workers = context.roster,
                                      .folders = context.places};
  guardian.also_forwarded = context.options.signals_to_handle;
  guardian.prepare = [&]() -> Result<void> {
    context.cgroup = make_job_cgroup();
    if (const auto made = make_folders(folders, context, endpoint); !made) return made.error();
    const bool verbose = context.options.talk == Talk::kVerbose;
    if (control) guardian.children.push_back(control->watcher());
    if (endpoint) {
      guardian.children.push_back(daemon_child(*endpoint, folders.state.path(), verbose));
    }
    for (int index = 0; index < context.plan.local_nodes; ++index) {
      guardian.children.push_back(agent_child(context, index));
    }
    return {};
  };
  guardian.tidy_up = [&] {
    if (!folders.report.path().empty()) print_report(folders.report.path());
    folders.remove();
  };
  guardian.on_agent_killed = [&](const agent::AgentKilled& killed) {
    if (killed.agent.name != agent_name(context, 0)) return;
    using Kind = rendezvous::Verdict::Kind;
    const Kind kind = killed.by_us ? Kind::kInterrupted : Kind::kAgentKilled;
    write_agent_killed(context, kind, killed.exit_code, killed.text);
  };
  return agent::guard(guardian);
}

Result<int> launch(Options& options, const Environment& environment, ControlStdin* control) {
  if (const auto resolved = resolve_local_address(options); !resolved) return resolved.error();
  auto command = resolve_program(options);
  if (!command) return command.error();
  const auto workers =
      agent::workers_per_node(to_string(options.nproc_per_node), agent::read_placement_facts());
  if (!workers) return workers.error();
  Facts facts = gather_facts(environment);
  if (const std::string name = name_to_resolve(options); !name.empty()) {
    facts.endpoint_addresses = resolve_name(name);
  }
  auto plan = make_plan(options, facts);
  if (!plan) return plan.error();
  for (const std::string& warning : plan->warnings) log::warning(warning);

  NodeContext context{.options = options,
                      .plan = *plan,
                      .host_name = facts.host_name,
                      .token = {},
                      .run_id = plan->run_id ? *plan->run_id : random_hex(4),
                      .command = std::move(*command),
                      .local_world_size = *workers};
  auto placement = place_workers(options, *workers, plan->local_nodes);
  if (!placement) return placement.error();
  context.placement = std::move(*placement);
  if (options.dry_run) return print_dry_run(context);
  offer_nccl_profiler(environment);
  if (options.error_file) {
    const auto ready = agent::prepare_verdict_file(*options.error_file);
    if (!ready) return ready.error();
  }
  auto token = obtain_token(*plan, value_of(environment, kTokenVariable));
  if (!token) return token.error();
  context.token = *token;
  std::unique_ptr<HostedEndpoint> endpoint;
  if (plan->mode == Plan::Mode::kHost) {
    auto opened = open_endpoint(*plan, *token);
    if (!opened) return opened.error();
    endpoint = std::move(*opened);
    if (!endpoint && plan->token == Plan::Token::kMint) return missing_token(plan->endpoint);
  }
  say_how_to_join(context);
  return guard_run(std::move(context), endpoint.get(), control);
}

int run(int argc, const char* const* argv, ControlStdin* control) {
  const Environment environment = own_environment();
  const auto config = read_config_file(config_path(environment), environment);
  if (!config) return fail(config.error());
  auto outcome = parse(argc, argv, with_config(environment, *config));
  if (!outcome) {
    return fail({outcome.error().code, explained(outcome.error().context, *config, environment)});
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    std::fputs(print->text.c_str(), stdout);
    return kExitOk;
  }
  auto& options = std::get<Options>(*outcome);
  log::start("ddprun", log_level(options.talk), log_format(options));
  if (control) options.scheduler = "the launching ddprun";
  const auto around = look_around(options, environment);
  if (!around) return fail(around.error());
  if (!around->warning.empty()) log::warning(around->warning);
  if (around->allocation) options = completed(std::move(options), *around->allocation);
  const Result<int> status = options.hosts.empty()
                                 ? launch(options, environment, control)
                                 : run_hosts(options, gather_facts(environment), environment);
  return status ? *status : fail(status.error());
}

// One of --hosts: the launching ddprun sends the command line.
int run_controlled() {
  take_variable(kTokenVariable);  // It comes with the orders.
  ControlStdin control;
  const auto orders = ControlStdin::receive(control);
  if (!orders) return fail(orders.error());
  if (!*orders) return kExitRendezvous;
  int status = kExitUsage;
  if (const auto obeyed = ControlStdin::obey(**orders); obeyed) {
    std::vector<const char*> argv;
    for (const std::string& word : (*orders)->argv) argv.push_back(word.c_str());
    status = run(static_cast<int>(argv.size()), argv.data(), &control);
  } else {
    (void)fail(obeyed.error());
  }
  std::printf("%s\n", ended_line((*orders)->nonce, status).c_str());
  return status;
}

int start(int argc, char** argv) {
  log::start("ddprun", log::Level::kInfo);
  if (argc == 2 && argv[1] == kControlFlag) return run_controlled();
  return run(argc, argv, nullptr);
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  ddprun::start_signals();
  try {
    return ddprun::launcher::start(argc, argv);
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "ddprun: error: %s\n", bug.what());
    return ddprun::launcher::kExitFailed;
  }
}
