#include "launcher/plan/decide.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "agent/node/command.h"
#include "agent/placement/worker_count.h"
#include "agent/workers/child_start.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/random_id.h"
#include "common/system/secrets.h"
#include "common/text/words.h"
#include "launcher/plan/gather_facts.h"
#include "launcher/plan/own_files.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/resolve_name.h"
#include "rendezvous/net/listener.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kTokenBytes = 16;

Result<UniqueFd> memory_file(const std::string& text) {
  UniqueFd fd(::memfd_create("ddprun-token", MFD_CLOEXEC));
  if (!fd) return errno_failure("making a memory file for the token");
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return errno_failure("writing the token to a memory file");
  }
  return fd;
}

std::string own_folder() { return own_program().parent_path(); }

std::string daemon_program() { return own_folder() + "/ddprun-rendezvous"; }

// Call this before anything waits for the daemon that this node is about to host.
Result<void> check_daemon_program() {
  const std::string path = daemon_program();
  if (::access(path.c_str(), X_OK) == 0) return {};
  const int error = errno;
  return Failure{Errc::kNotFound, "this node hosts the run's rendezvous daemon, and " + path +
                                      " cannot be run (" + std::strerror(error) +
                                      "): install it beside ddprun on each node"};
}

// The daemon would end, and the run wait for it.
Result<void> check_pages(const DaemonPages& pages) {
  if (!pages.port) return {};
  const auto listening = rendezvous::listen_socket(pages.address, *pages.port);
  if (listening) return {};
  Failure failure = listening.error();
  failure.context = "the pages of --http-port: " + failure.context;
  return failure;
}

bool is_taken(const Result<UniqueFd>& listening) {
  return !listening && listening.error().code == std::errc::address_in_use;
}

// The first of the derived ports that is free; else why the first is not.
Result<UniqueFd> listen_at_derived(const RendezvousPlan& plan, Result<UniqueFd> first) {
  std::string ports;
  for (const std::uint16_t port : plan.derived_ports) {
    auto listening = rendezvous::listen_socket(plan.listen_host, port);
    if (listening) {
      log::info(to_string(first.error()) + "; using port " + std::to_string(port) + " instead");
      return listening;
    }
    ports += (ports.empty() ? "" : ", ") + std::to_string(port);
  }
  if (ports.empty()) return first;
  Failure failure = first.error();
  failure.context += " (and so are " + ports + ")";
  return failure;
}

}  // namespace

Result<std::string> obtain_token(const RendezvousPlan& plan, const std::string& given) {
  if (plan.token != RendezvousPlan::Token::kNone) hide_memory();
  switch (plan.token) {
    case RendezvousPlan::Token::kNone: return std::string();
    case RendezvousPlan::Token::kMint: return random_hex(kTokenBytes);
    case RendezvousPlan::Token::kEnvironment: return trimmed(given);
    case RendezvousPlan::Token::kFile: break;
  }
  return secret_in_file(plan.token_file, "token");
}

Result<std::unique_ptr<HostedEndpoint>> open_endpoint(RendezvousPlan& plan,
                                                      const std::string& token,
                                                      const DaemonPages& pages) {
  DDPRUN_ASSERT(plan.mode == RendezvousPlan::Mode::kHost);
  auto listening = rendezvous::listen_socket(plan.listen_host, plan.endpoint.port.value_or(0));
  if (is_taken(listening)) listening = listen_at_derived(plan, std::move(listening));
  if (is_taken(listening)) {
    if (plan.if_taken == RendezvousPlan::IfTaken::kJoin) {
      plan.mode = RendezvousPlan::Mode::kJoin;
      return std::unique_ptr<HostedEndpoint>();
    }
    if (plan.if_taken == RendezvousPlan::IfTaken::kAnyPort) {
      listening = rendezvous::listen_socket(plan.listen_host, 0);
    }
  }
  if (!listening) return listening.error();
  if (const auto there = check_daemon_program(); !there) return there.error();
  if (const auto free = check_pages(pages); !free) return free.error();
  plan.endpoint.port = rendezvous::local_port(listening->get());
  UniqueFd token_file;
  if (!token.empty()) {
    const auto warning = is_loopback(plan.listen_host) ? std::nullopt : short_token_warning(token);
    if (warning) log::warning(*warning);
    auto file = memory_file(token);
    if (!file) return file.error();
    token_file = std::move(*file);
  }
  auto endpoint = std::make_unique<HostedEndpoint>(
      HostedEndpoint{std::move(*listening), std::move(token_file)});
  endpoint->pages = pages;
  if (!token.empty() && plan.store_at_endpoint) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return errno_failure("making a channel from the rendezvous daemon to the agent");
    }
    endpoint->store_giver.reset(ends[0]);
    endpoint->store_taker.reset(ends[1]);
  }
  if (!plan.derived_ports.empty()) endpoint->only_run = plan.run_id.value_or("");
  return endpoint;
}

GuardedChild daemon_child(const HostedEndpoint& endpoint, const std::string& state_folder,
                          bool verbose) {
  GuardedChild child;
  child.kind = GuardedChild::Kind::kService;
  child.leave_signal = kLeaveSignal;
  child.name = "the rendezvous daemon";
  child.argv = {daemon_program(), "--end-when-over", "--end-runs-on-exit", "--listen-fd",
                std::to_string(endpoint.listening.get())};
  if (!state_folder.empty()) child.argv.insert(child.argv.end(), {"--state-dir", state_folder});
  if (!endpoint.only_run.empty()) {
    child.argv.insert(child.argv.end(), {"--only-run", endpoint.only_run});
  }
  if (endpoint.pages.port) {
    child.argv.insert(child.argv.end(), {"--http-port", std::to_string(*endpoint.pages.port),
                                         "--http-address", endpoint.pages.address});
  }
  child.inherited_fds = {endpoint.listening.get()};
  if (endpoint.token_file) {
    child.argv.insert(child.argv.end(), {"--token-fd", std::to_string(endpoint.token_file.get())});
    child.inherited_fds.push_back(endpoint.token_file.get());
  } else {
    child.argv.emplace_back("--no-auth");
  }
  if (endpoint.store_giver) {
    child.argv.insert(child.argv.end(), {"--store-fd", std::to_string(endpoint.store_giver.get())});
    child.inherited_fds.push_back(endpoint.store_giver.get());
  }
  if (verbose) child.argv.emplace_back("--verbose");
  child.environment = agent::current_environment();
  return child;
}

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

// The MachineFacts, with the one name resolved on which they depend.
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
