#include "launcher/run/node.h"

#include <unistd.h>

#include <algorithm>
#include <boost/system/errc.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "agent/node/verdict_file.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/system/own_networks.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "launcher/history/history.h"
#include "launcher/options/help.h"
#include "launcher/options/option_values.h"
#include "launcher/run/report.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

// No other node can join, and the daemon is in our own process: there are no beats to miss.
constexpr Milliseconds kNeverSilent = 24h;
constexpr Milliseconds kFoldWait = 200ms;  // For the slowest rank to write the same line.
constexpr Milliseconds kStopSlack =
    10s;  // Beyond the grace that workers get: to kill and to report.

// What the workers will find in the variable, which may be set without the flag.
int audit_per_million() {
  constexpr double kPercent = 10'000;
  const std::string given = environment_variable(kAuditVariable);
  const auto percent = given.empty() ? Result<std::string>("0") : parse_audit(given);
  if (!percent) return 0;  // The job refuses it, and names the variable.
  double value = 0;
  std::from_chars(percent->data(), percent->data() + percent->size(), value);
  return static_cast<int>(std::lround(value * kPercent));
}

rendezvous::RunConfig run_config(const Options& options, const RendezvousPlan& plan) {
  rendezvous::RunConfig config;
  const RdzvConf& conf = options.rdzv_conf;
  config.nnodes_min = plan.nnodes.min;
  config.nnodes_max = plan.nnodes.max;
  config.max_restarts = options.max_restarts;
  config.min_ranks = options.min_ranks;
  config.audit_per_million = audit_per_million();
  config.join_timeout = conf.join_timeout.value_or(config.join_timeout);
  config.last_call = conf.last_call_timeout.value_or(config.last_call);
  config.heartbeat_timeout = conf.heartbeat_timeout.value_or(config.heartbeat_timeout);
  config.standstill_timeout = conf.standstill_timeout.value_or(config.standstill_timeout);
  config.join_at_restart = conf.join_at_restart;
  if (plan.mode == RendezvousPlan::Mode::kStandalone) config.heartbeat_timeout = kNeverSilent;
  config.stop_timeout = options.shutdown_timeout + kStopSlack;
  return config;
}

// The time until a whole machine that stood still, which looks the same as a cut cable, is back and
// found.
Milliseconds return_time(const rendezvous::RunConfig& config) {
  return config.standstill_timeout + 10s;
}

// Long enough for a daemon that starts again, or a standby that takes over, to be found, too.
Milliseconds fence_timeout(const RdzvConf& conf, const rendezvous::RunConfig& config) {
  return conf.fence_timeout.value_or(
      std::max<Milliseconds>({20s, 3 * config.heartbeat_timeout, return_time(config)}));
}

Milliseconds close_timeout(const RdzvConf& conf, const rendezvous::RunConfig& config) {
  return conf.close_timeout.value_or(std::max<Milliseconds>(30s, return_time(config)));
}

agent::SupervisorOptions supervision(const NodeContext& context,
                                     const rendezvous::NodeOffer& offer) {
  const RdzvConf& conf = context.options.rdzv_conf;
  agent::SupervisorOptions supervision;
  supervision.host = offer.host;
  supervision.local_world_size = offer.local_world_size;
  supervision.clock = clock_name();
  supervision.spares = context.options.spares;
  supervision.grace = context.options.shutdown_timeout;
  supervision.preempt_signals = context.options.preempt_signals;
  supervision.connect_limit = supervision.ready_limit = offer.config.join_timeout;
  supervision.report_limit = close_timeout(conf, offer.config);
  if (context.plan.mode == RendezvousPlan::Mode::kStandalone) return supervision;
  const NodeRange& nnodes = context.plan.nnodes;
  supervision.fence = fence_timeout(conf, offer.config);
  supervision.fence_always = conf.fence_timeout || nnodes.min < nnodes.max;
  return supervision;
}

// The same rate over all nodes of this launcher together.
agent::ChaosOptions chaos_options(const Options& options, int nodes, int index) {
  if (!options.chaos) return {};
  const std::uint64_t seed = options.chaos_seed ? *options.chaos_seed : random_number();
  return {.mean = Duration(*options.chaos) * nodes,
          .seed = seed + static_cast<std::uint64_t>(index)};
}

std::string signal_names(const std::vector<int>& signals) {
  std::string text;
  for (const int signal : signals) {
    text += std::string(text.empty() ? "" : ",") + "SIG" + ::sigabbrev_np(signal);
  }
  return text;
}

agent::OutputOptions output_options(const Options& options, const std::string& host) {
  agent::OutputOptions output{options.output};
  output.role = options.role;
  output.hostname = host;
  output.lines.format = options.log_format;
  if (options.fold_lines) output.lines.fold = kFoldWait;
  return output;
}

agent::RemoteLinkOptions daemon_options(const NodeContext& context,
                                        const rendezvous::RunConfig& config) {
  const RendezvousPlan& plan = context.plan;
  const RdzvConf& conf = context.options.rdzv_conf;
  DDPRUN_ASSERT(plan.mode != RendezvousPlan::Mode::kStandalone && plan.endpoint.port);
  agent::RemoteLinkOptions daemon;
  daemon.host = plan.mode == RendezvousPlan::Mode::kHost ? plan.local_host : plan.endpoint.host;
  daemon.port = *plan.endpoint.port;
  for (const Endpoint& other : plan.other_endpoints) {
    daemon.others.push_back({other.host, *other.port});
  }
  if (plan.mode == RendezvousPlan::Mode::kJoin && !plan.derived_ports.empty()) {
    for (const std::uint16_t port : plan.derived_ports)
      daemon.others.push_back({daemon.host, port});
    daemon.are_guesses = true;
  }
  daemon.token = context.token;
  // Ends an attempt early enough to keep its error for the message on giving up.
  daemon.attempt_limit = std::min(daemon.attempt_limit, config.join_timeout / 2);
  if (conf.read_timeout) daemon.attempt_limit = *conf.read_timeout;
  // Distinguishes a daemon that stands still from a cut cable before the fence is over.
  if (conf.fence_timeout && *conf.fence_timeout > Duration::zero()) {
    daemon.attempt_limit = std::min(daemon.attempt_limit, *conf.fence_timeout / 2);
  }
  daemon.silence_max = std::max<Milliseconds>(2s, 2 * config.heartbeat_timeout);
  return daemon;
}

rendezvous::NodeOffer node_offer(const NodeContext& context, int index) {
  const RendezvousPlan& plan = context.plan;
  rendezvous::NodeOffer offer;
  offer.host = context.host_name;
  if (plan.local_nodes > 1) offer.host += "/" + std::to_string(index);
  offer.local_world_size = context.local_world_size;
  offer.role = context.options.role;
  offer.node_rank = plan.node_rank.value_or(-1);
  if (plan.local_nodes > 1 && !plan.others_may_come) offer.node_rank = index;
  offer.hosts_endpoint = plan.mode == RendezvousPlan::Mode::kHost && index == 0;
  offer.scheduler_step = context.options.scheduler_step;
  offer.config = run_config(context.options, plan);
  if (plan.offers_networks) {
    offer.networks = own_networks(environment_variable("DDPRUN_SOCKET_IFNAME"));
  }
  return offer;
}

agent::AgentFiles agent_files(const NodeContext& context, int index) {
  const Options& options = context.options;
  agent::AgentFiles files;
  if (options.error_file) files.verdict.push_back(*options.error_file);
  // If another launcher started us as a worker, it reads the verdict there, like torchrun's.
  const std::string inherited = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!inherited.empty()) files.verdict.push_back(inherited);
  if (!context.report_folder.empty()) {
    if (options.report && index == 0) files.ledger = context.report_folder + "/" + kLedgerFile;
    if (options.report_html) files.account = context.report_folder + "/" + kAccountFile;
  }
  if (!context.watch_folder.empty()) {
    files.window = window_path(context.watch_folder, index);
    files.ending = ending_file(context, index);
  }
  if (!context.imports_folder.empty()) {
    files.imports = context.imports_folder + "/imports-" + std::to_string(index);
  }
  if (!context.ranks_folder.empty()) {
    files.recorders = context.ranks_folder + "/node" + std::to_string(index) + "-rank";
  }
  return files;
}

}  // namespace

agent::AgentOptions agent_options(const NodeContext& context, int index) {
  const Options& options = context.options;
  const RendezvousPlan& plan = context.plan;
  agent::AgentOptions node;
  DDPRUN_ASSERT(index >= 0 && index < plan.local_nodes && context.local_world_size >= 1);
  node.run_id = context.run_id;
  node.offer = node_offer(context, index);
  node.address = plan.node_address;
  node.store_listen_host = plan.store_listen_host;
  node.store_for_all_users = options.rdzv_conf.store_for_all_users;
  node.master_port = index == 0 ? plan.store_port.value_or(0) : 0;
  if (index == 0) node.store_place.clients_fd = context.store_clients_fd;
  node.offer.store_at_endpoint = plan.store_at_endpoint && node.store_place.clients_fd >= 0;
  if (!plan.store_address.empty()) {
    node.store_place.address = plan.store_address;
    node.store_place.port = *plan.endpoint.port;
  }
  if (plan.mode != RendezvousPlan::Mode::kStandalone) {
    node.daemon = daemon_options(context, node.offer.config);
  }
  node.command = context.command;
  node.output = output_options(options, node.offer.host);
  node.signals = handled_signals(options);
  node.signals_to_handle = signal_names(options.signals_to_handle);
  node.virtual_local_rank = options.virtual_local_rank;
  node.shares_machine = plan.local_nodes > 1;
  node.supervision = supervision(context, node.offer);
  node.placement = context.placement.of_node(index, context.local_world_size);
  node.stalls = options.stalls;
  node.chaos = chaos_options(options, plan.local_nodes, index);
  node.job = context.job;
  node.preload = context.preload;
  if (context.image_file >= 0) {
    node.keep = {.time = std::chrono::minutes(options.preload_keep),
                 .file = index == 0 ? context.image_file : -1};
  }
  if (index == 0) node.stdin_for = options.stdin_for;
  if (const auto i = static_cast<std::size_t>(index); i < context.memory.size()) {
    node.memory = context.memory[i];
    if (node.memory.port > 0) node.offer.memory_port = node.memory.port;
  }
  node.files = agent_files(context, index);
  node.one_port = options.one_port;
  node.reports_for_run = index == 0;
  node.status_line = options.verbosity != Verbosity::kQuiet;
  if (!context.watch_folder.empty()) node.typed = command_text(options);
  node.hint = [program = options.program,
               arguments = options.program_arguments](const std::string& last_words) {
    const std::string misplaced = misplaced_flag_hint(program, arguments, last_words);
    return misplaced.empty() ? bare_ipv6_hint(last_words) : misplaced;
  };
  return node;
}

std::string ending_file(const NodeContext& context, int index) {
  return context.watch_folder + "/ending-" + std::to_string(index);
}

bool wants_error_folder(const Options& options) {
  const agent::OutputChoice& output = options.output;
  return !options.log_dir && output.redirects == StreamMap() && output.tee == StreamMap();
}

std::string agent_name(const NodeContext& context, int index) {
  return context.plan.local_nodes > 1 ? "the agent of node " + std::to_string(index) : "the agent";
}

namespace {

void make_files_folder(ScratchFolder& folder, NodeContext& context) {
  const bool watched = keeps_history();
  const bool errors = wants_error_folder(context.options);
  const bool learns = context.preload == "auto";
  const auto made = watched || errors || learns ? folder.make() : Result<void>();
  if (!made && errors) log::warning(to_string(made.error()) + "; workers get no error files");
  if (watched) context.watch_folder = folder.path();
  if (errors) context.error_folder = folder.path();
  if (learns && made) context.imports_folder = folder.path();
}

}  // namespace

Result<void> make_folders(RunFolders& folders, NodeContext& context, bool hosts) {
  if (hosts) {
    const auto made = folders.state.make();
    if (!made) {
      log::warning(to_string(made.error()) +
                   "; the rendezvous daemon keeps no journal, and the run ends if it is killed");
    }
  }
  if (context.options.report || context.options.report_html) {
    const auto made = folders.report.make();
    if (!made) log::warning(to_string(made.error()) + "; there will be no report");
    context.report_folder = folders.report.path();
    const bool exports_folder = made && context.options.report;
    if (exports_folder) ::setenv(kReportVariable, context.report_folder.c_str(), 1);
  }
  if (context.queries_ranks && folders.ranks.make()) context.ranks_folder = folders.ranks.path();
  make_files_folder(folders.files, context);
  return {};
}

void write_agent_killed(const NodeContext& context, rendezvous::Verdict::Kind kind, int exit_code,
                        const std::string& text) {
  agent::write_verdict_files(agent_files(context, 0).verdict,
                             {.kind = kind, .exit_code = exit_code, .text = text}, context.run_id);
}

namespace {

// The default folder may be missing, and a disk may be full: neither should prevent the start.
bool goes_without(const Options& options, const Failure& failure) {
  return !options.log_dir || failure.code == std::errc::no_space_on_device ||
         failure.code.value() == EDQUOT;
}

Result<agent::LogFolder> log_folder(const NodeContext& context, int index) {
  const Options& options = context.options;
  if (wants_error_folder(options)) {
    if (context.error_folder.empty()) return agent::LogFolder();
    const std::string node = index == 0 ? "" : std::to_string(index) + "_";
    return agent::LogFolder::for_error_files(context.error_folder, "error_" + node);
  }
  auto logs = agent::LogFolder::create(options.log_dir.value_or(""), context.run_id);
  if (logs && !options.log_dir) log::info("workers' output goes to " + logs->folder());
  if (logs) return logs;
  Failure failure = logs.error();
  if (options.log_dir) failure.context = "--log-dir " + *options.log_dir + ": " + failure.context;
  if (!goes_without(options, failure)) return failure;
  log::warning(to_string(failure) + "; there are no log files, and all goes to the console");
  return agent::LogFolder();
}

}  // namespace

int run_node(const NodeContext& context, int index, std::function<void(int status)> decided) {
  const Limits before = raise_soft_limits();
  agent::AgentOptions node = agent_options(context, index);
  node.worker_limits = before;
  node.on_decided = std::move(decided);
  auto logs = log_folder(context, index);
  if (!logs) {
    log::error(to_string(logs.error()));
    return kExitFailed;
  }
  node.output.logs = *logs;
  // There are no files after all: print everything.
  if (!logs->enabled() && context.options.log_dir != "/dev/null") node.output.redirects = {};
  const int status = agent::Agent(std::move(node)).run();
  // The launcher was killed, and the keeper perhaps with it.
  if (::getppid() != context.job.launcher_pid) remove_places(context.places);
  return status;
}

}  // namespace ddprun::launcher
