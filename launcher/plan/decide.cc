#include "launcher/plan/decide.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "agent/node/command.h"
#include "agent/placement/gpus.h"
#include "agent/placement/topology.h"
#include "agent/placement/worker_count.h"
#include "agent/process/cgroup.h"
#include "agent/workers/child_start.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "common/text/words.h"
#include "launcher/options/flags.h"
#include "launcher/plan/gather_facts.h"
#include "launcher/plan/own_files.h"
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

std::string own_folder() { return std::filesystem::path(own_program()).parent_path(); }

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
  for (const std::string& warning : misspelled_variables(environment)) log::warning(warning);
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

namespace {

std::vector<agent::Gpu> visible_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return agent::visible_among(agent::find_gpus(),
                              visible ? std::optional<std::string>(visible) : std::nullopt);
}

// If there are as many workers as GPUs, each gets one; a number of workers may also mean to use
// none.
bool means_gpus(const Options& options, const std::vector<agent::Gpu>& gpus) {
  const std::string count = to_string(options.nproc_per_node);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool named = visible && std::string_view(visible).find("MIG-") != std::string_view::npos;
  const bool any =
      std::any_of(gpus.begin(), gpus.end(), [](const agent::Gpu& gpu) { return gpu.is_slice; });
  return any && (named || count == "gpu" || count == "auto" || options.oversubscribe_gpu);
}

std::string gpu_text(std::size_t index, const agent::Gpu& gpu) {
  std::string text = "GPU " + std::to_string(index);
  if (gpu.is_slice) text += " (" + gpu.uuid + ")";
  if (gpu.bus_id.empty()) return text;
  text += " (" + gpu.bus_id;
  if (gpu.numa_node >= 0) text += ", NUMA node " + std::to_string(gpu.numa_node);
  return text + ")";
}

// Assigns a GPU to each worker: the one of its local rank, or in turns.
void place_on_gpus(const Options& options, const std::vector<agent::Gpu>& gpus, int workers,
                   int local_nodes, Placement& placement, std::vector<int>& numa_nodes) {
  DDPRUN_ASSERT(!options.oversubscribe_gpu || !gpus.empty());
  const bool one_each = means_gpus(options, gpus);
  for (int worker = 0; worker < workers * local_nodes; ++worker) {
    auto gpu = static_cast<std::size_t>(worker % workers);
    if (options.oversubscribe_gpu) gpu %= gpus.size();
    const bool has = gpu < gpus.size();
    numa_nodes.push_back(has ? gpus[gpu].numa_node : -1);
    placement.gpus.push_back(has ? gpu_text(gpu, gpus[gpu]) : "no GPU");
    if (one_each) placement.devices.push_back(has ? gpus[gpu].uuid : "");
  }
}

Result<void> bind_to_processors(const Options& options, const std::vector<int>& numa_nodes,
                                Placement& placement) {
  const auto machine = agent::read_machine();
  if (!machine) return machine.error();
  auto bound = agent::bind_workers(*machine, options.numa_binding, numa_nodes);
  if (!bound) return bound.error();
  if (options.numa_binding != agent::NumaBinding::kNone) placement.processors = *bound;
  DDPRUN_ASSERT(bound->size() == numa_nodes.size());
  if (options.omp_num_threads != 0) return {};
  std::vector<int> all;
  for (const agent::NumaNode& node : machine->nodes) {
    for (const auto& core : node.cores) all.insert(all.end(), core.begin(), core.end());
  }
  const auto quota = agent::processor_quota();
  const int by_quota = quota ? static_cast<int>(*quota / static_cast<double>(bound->size()))
                             : std::numeric_limits<int>::max();
  for (const std::vector<int>& own : *bound) {
    // Workers with the same processors share them.
    const std::vector<int>& processors = own.empty() ? all : own;
    const auto sharers = static_cast<int>(std::count(bound->begin(), bound->end(), own));
    const int threads = std::min(agent::count_cores(*machine, processors) / sharers, by_quota);
    placement.omp_threads.push_back(std::max(1, threads));
  }
  return {};
}

}  // namespace

Result<Placement> place_workers(const Options& options, int workers_per_node, int local_nodes) {
  Placement placement;
  DDPRUN_ASSERT(workers_per_node >= 1 && local_nodes >= 1);
  const int workers = workers_per_node * local_nodes;
  const bool binds = options.numa_binding != agent::NumaBinding::kNone;
  if (options.omp_num_threads.value_or(0) > 0) {
    placement.omp_threads.assign(static_cast<std::size_t>(workers), *options.omp_num_threads);
  }
  const std::vector<agent::Gpu> gpus = visible_gpus();
  const bool by_gpu = options.oversubscribe_gpu || means_gpus(options, gpus);
  if (!binds && !by_gpu && options.omp_num_threads != 0) return placement;
  if (options.oversubscribe_gpu && gpus.empty()) {
    return Failure{Errc::kBadOption, "--oversubscribe-gpu: there is no NVIDIA GPU to share here"};
  }
  if (options.oversubscribe_gpu) placement.shared_gpus = static_cast<int>(gpus.size());
  std::vector<int> numa_nodes;
  place_on_gpus(options, gpus, workers_per_node, local_nodes, placement, numa_nodes);
  if (!binds && options.omp_num_threads != 0) return placement;
  const auto bound = bind_to_processors(options, numa_nodes, placement);
  if (!bound) return bound.error();
  return placement;
}

std::string slices_text(const Placement& placement, int slices) {
  if (slices == 0 && placement.devices.empty()) return "";
  if (!placement.devices.empty()) {
    return "the GPUs are in MIG mode: each worker sees one slice (CUDA_VISIBLE_DEVICES=MIG-...), "
           "and has LOCAL_RANK=0";
  }
  return "the GPUs are in MIG mode, of which a process can use one slice, and all workers see the "
         "same first one; --nproc-per-node gpu gives each of " +
         std::to_string(slices) + " workers its own";
}

std::string to_text(const Placement& placement, int workers_per_node) {
  std::string text;
  const std::size_t workers =
      std::max({placement.processors.size(), placement.omp_threads.size(), placement.gpus.size()});
  for (std::size_t i = 0; i < workers; ++i) {
    const auto per_node = static_cast<std::size_t>(workers_per_node);
    text += (i == 0 ? "placement:   " : "             ");
    if (workers > per_node) text += "node " + std::to_string(i / per_node) + " ";
    text += "local rank " + std::to_string(i % per_node) + ":";
    if (i < placement.gpus.size()) text += " " + placement.gpus[i];
    if (i < placement.processors.size())
      text += ", processors " + agent::processors_text(placement.processors[i]);
    if (i < placement.omp_threads.size())
      text += ", OMP_NUM_THREADS=" + std::to_string(placement.omp_threads[i]);
    text += "\n";
  }
  return text;
}

}  // namespace ddprun::launcher
