// ddprun: what a user types. Reads the command line, makes a plan, opens the endpoint if this node
// hosts it, and forks the processes that do the work; then it only watches over them.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "agent/command.h"
#include "agent/guardian.h"
#include "agent/placement.h"
#include "common/log.h"
#include "common/random_id.h"
#include "launcher/endpoint.h"
#include "launcher/exit_status.h"
#include "launcher/facts.h"
#include "launcher/node.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "launcher/report.h"
#include "launcher/resolve_name.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

constexpr Milliseconds kResolveLimit = 5s;

Environment own_environment() {
  Environment environment;
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

int fail(const Failure& failure) {
  const bool whole_sentence = failure.code == Errc::kBadOption || failure.code == Errc::kNotFound;
  log::error(whole_sentence ? failure.context : to_string(failure));
  return whole_sentence ? kExitUsage : kExitFailed;
}

std::string worker_request(const WorkerCount& count) {
  switch (count.kind) {
    case WorkerCount::Kind::kNumber: return std::to_string(count.number);
    case WorkerCount::Kind::kAuto: return "auto";
    case WorkerCount::Kind::kGpu: return "gpu";
    case WorkerCount::Kind::kCpu: return "cpu";
  }
  return "1";
}

Result<std::vector<std::string>> resolve_program(const Options& options) {
  agent::CommandRequest request;
  request.program = options.program;
  request.arguments = options.program_arguments;
  request.module = options.module;
  request.no_python = options.no_python;
  return agent::resolve_command(request, agent::current_command_context(), agent::PosixFileProbe());
}

int print_dry_run(const NodeContext& context) {
  const Plan& plan = context.plan;
  static constexpr const char* kModes[] = {"in this process (no other node can come)",
                                           "hosted by this node at ", "joined at "};
  std::printf("rendezvous:  %s%s\n", kModes[static_cast<int>(plan.mode)],
              plan.mode == Plan::Mode::kStandalone ? "" : to_string(plan.endpoint).c_str());
  std::printf("nodes:       %d to %d, %d of them here\n", plan.nnodes.min, plan.nnodes.max,
              plan.local_nodes);
  std::printf("workers:     %d a node, local ranks 0 to %d\n", context.local_world_size,
              context.local_world_size - 1);
  std::printf("command:    ");
  for (const std::string& word : context.command) std::printf(" %s", shell_quote(word).c_str());
  std::printf("\n");
  return kExitOk;
}

void say_how_to_join(const NodeContext& context) {
  if (context.plan.mode != Plan::Mode::kHost || !context.plan.others_may_come) return;
  log::info("on " +
            std::string(context.plan.nnodes.max > 2 ? "each other node" : "the other node") +
            ", run:\n\n  " + paste_line(context.plan, context.options, context.token) + "\n");
}

// Starts everything and watches over it until the run is over.
int guard_run(NodeContext context, const HostedEndpoint* endpoint) {
  agent::GuardianPlan guardian;
  if (endpoint) {
    guardian.children.push_back(daemon_child(*endpoint, context.options.talk == Talk::kVerbose));
  }
  context.launcher_pid = ::getpid();
  const bool several = context.plan.local_nodes > 1;
  for (int index = 0; index < context.plan.local_nodes; ++index) {
    agent::GuardedChild node;
    node.name = several ? "the agent of node " + std::to_string(index) : "the agent";
    node.body = [&context, index, several] {
      log::start(several ? "ddprun node " + std::to_string(index) : "ddprun",
                 log_level(context.options.talk));
      return run_node(context, index);
    };
    guardian.children.push_back(std::move(node));
  }
  return agent::guard(guardian);
}

Result<int> launch(const Options& options, const Environment& environment) {
  auto command = resolve_program(options);
  if (!command) return command.error();
  const auto workers = agent::workers_per_node(worker_request(options.nproc_per_node),
                                               agent::read_placement_facts());
  if (!workers) return workers.error();
  Facts facts = gather_facts(environment);
  if (const std::string name = name_to_resolve(options, facts); !name.empty()) {
    facts.endpoint_addresses = resolve_name(name, kResolveLimit);
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
  if (options.dry_run) return print_dry_run(context);
  auto token = obtain_token(*plan);
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
  if (!options.report) return guard_run(std::move(context), endpoint.get());
  auto report = Report::open();
  if (!report) return report.error();
  const int status = guard_run(std::move(context), endpoint.get());
  report->print();
  return status;
}

int run(int argc, char** argv) {
  log::start("ddprun", log::Level::kInfo);
  const Environment environment = own_environment();
  auto outcome = parse(argc, argv, environment);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    std::fputs(print->text.c_str(), stdout);
    return kExitOk;
  }
  const auto& options = std::get<Options>(*outcome);
  log::start("ddprun", log_level(options.talk));
  const Result<int> status = launch(options, environment);
  return status ? *status : fail(status.error());
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  try {
    return ddprun::launcher::run(argc, argv);
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "ddprun: error: %s\n", bug.what());
    return ddprun::launcher::kExitFailed;
  }
}
