#include "launcher/run/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>

#include "agent/node/command.h"
#include "agent/process/cgroup.h"
#include "agent/process/kept_images.h"
#include "agent/workers/child_start.h"
#include "common/bundle.h"
#include "common/exit_status.h"
#include "common/ports.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "common/text/words.h"
#include "launcher/doctor/health_report.h"
#include "launcher/doctor/network.h"
#include "launcher/doctor/probes.h"
#include "launcher/guard/holder.h"
#include "launcher/guard/keeper.h"
#include "launcher/guard/scratch.h"
#include "launcher/plan/decide.h"
#include "launcher/plan/dry_run.h"
#include "launcher/plan/own_files.h"
#include "launcher/plan/plan.h"
#include "launcher/run/memory.h"
#include "launcher/run/node.h"
#include "launcher/run/report.h"

namespace ddprun::launcher {
namespace {

log::Level log_level(Verbosity verbosity) {
  switch (verbosity) {
    case Verbosity::kQuiet: return log::Level::kWarning;
    case Verbosity::kNormal: return log::Level::kInfo;
    case Verbosity::kVerbose: return log::Level::kDebug;
  }
  return log::Level::kInfo;
}

}  // namespace

void start_log(const std::string& name, const Options& options) {
  const bool json = options.log_format == agent::LineFormat::kJson;
  log::start(name, log_level(options.verbosity), json ? log::Format::kJson : log::Format::kText);
}

int fail(const Failure& failure) {
  const bool whole_sentence = failure.code == Errc::kBadOption || failure.code == Errc::kNotFound;
  log::error(whole_sentence ? failure.context : to_string(failure));
  return whole_sentence ? kExitUsage : kExitFailed;
}

Environment take_environment() {
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

namespace {

int print_dry_run(const LaunchPlan& run) {
  write_output(dry_run_text(run, agent::current_environment()));
  write_output(to_text(run.placement, run.local_world_size));
  return kExitOk;
}

// The path of a file installed with this program; empty if it is not.
std::string own_file(const std::string& name) {
  for (const std::string& folder : agent::current_command_context().own_folders) {
    const std::string path = folder + "/" + name;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

void offer_nccl_profiler(const Environment& environment) {
  const std::string plugin = own_file(kNcclPluginFile);
  const NcclProfilePlan plan = plan_nccl_profile(environment, plugin);
  if (!plan.warning.empty()) log::warning(plan.warning);
  if (!plan.plugin.empty()) ::setenv(kNcclPluginVariable, plan.plugin.c_str(), 1);
}

void watch_python(NodeContext& context, const Environment& environment) {
  const std::string file = own_file(kPythonStartupFile);
  const std::string folder = file.substr(0, file.rfind('/'));
  const PythonWatch plan = plan_python_watch(context.options, environment, folder);
  context.queries_ranks = plan.may_query;
  context.preload = plan.preload;
  if (!plan.watch.empty()) ::setenv(kPythonWatchVariable, plan.watch.c_str(), 1);
  if (!plan.python_path.empty()) ::setenv(kPythonPathVariable, plan.python_path.c_str(), 1);
}

void print_how_to_join(const NodeContext& context) {
  if (context.plan.mode != RendezvousPlan::Mode::kHost || !context.plan.others_may_come) return;
  if (!context.options.scheduler.empty()) return;  // The scheduler starts the others itself.
  const std::string others = context.plan.nnodes.max > 2 ? "each other node" : "the other node";
  const std::string where = is_loopback(context.plan.endpoint.host)
                                ? "for " + others + ", which has to be on this host"
                                : "on " + others;
  log::info(where + ", run:\n\n  " + paste_line(context.plan, context.options, context.token) +
            "\n");
}

// Null if this node joins others. May change context.plan: to another port, or to joining after
// all.
Result<std::unique_ptr<HostedEndpoint>> hosted_endpoint(NodeContext& context) {
  if (context.plan.mode != RendezvousPlan::Mode::kHost) return std::unique_ptr<HostedEndpoint>();
  auto opened = open_endpoint(context.plan, context.token, context.options.pages);
  if (opened && !*opened && context.plan.token == RendezvousPlan::Token::kMint) {
    return missing_token(context.plan.endpoint);
  }
  return opened;
}

// Empty if the kernel does not let us make one: then death signals and sub-reapers do their best.
std::string make_job_cgroup(const std::string& path) {
  const auto made = agent::make_cgroup(path);
  if (!made) log::debug("without a cgroup of its own: " + to_string(made.error()));
  return made ? *made : "";
}

// `decided` may be null: where there is no memory for it.
GuardedChild agent_child(const NodeContext& context, int index, const DecidedCode* decided) {
  GuardedChild node;
  node.name = agent_name(context, index);
  node.takes_signals = node.knows_senders = true;
  node.decided = decided;
  node.body = [&context, index, decided] {
    const bool several = context.plan.local_nodes > 1;
    start_log(several ? "ddprun node " + std::to_string(index) : "ddprun", context.options);
    return run_node(context, index, [decided](int status) {
      if (decided) decided->decide(status);
    });
  };
  return node;
}

// What the keeper removes if all else is killed. It finds processes by a mark that all of this job
// carry.
Result<KeeperTask> keeper_task(NodeContext& context, const RunFolders& folders) {
  const std::string job = random_hex(8);
  ::setenv(kJobVariable, job.c_str(), 1);
  const int fork_server = context.preload.empty() ? 0 : 1;
  const int workers = context.local_world_size + context.options.spares + fork_server;
  auto roster = agent::WorkerRoster::make(static_cast<std::size_t>(workers) *
                                          static_cast<std::size_t>(context.plan.local_nodes));
  if (!roster) return roster.error();
  context.job.roster = *roster;
  context.places = folders.places();
  return KeeperTask{.mark = kJobVariable + ("=" + job),
                    .cgroup = agent::job_cgroup_path(::getpid()),
                    .workers = context.job.roster,
                    .folders = context.places};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  char text[32];
  std::strftime(text, sizeof text, "%FT%TZ", ::gmtime_r(&now, &fields));
  return text;
}

// Only on the node of group rank 0: the others receive no account.
void write_page(const NodeContext& context, const std::string& folder) {
  if (!context.options.report_html || folder.empty()) return;
  const PageFacts facts{.command = command_text(context.options),
                        .started_utc = context.started_utc};
  const auto written = write_report_page(folder, *context.options.report_html, facts);
  if (!written) return log::warning("there is no report: " + to_string(written.error()));
  if (*written) return log::info("the report is in " + *context.options.report_html);
  if (context.plan.mode == RendezvousPlan::Mode::kJoin) return;
  log::warning("there is no report: no account of the run came");
}

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

// --preflight full: judges this node before it joins. A failure: it is unfit, and why has been
// logged; it must not join, so that a spare takes its seat.
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

// --preflight fast: a service beside the agents that logs the problems of this node, one line each,
// and nothing if there are none.
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

// The state of a run under the guardian.
struct GuardedRun {
  NodeContext& context;
  const HostedEndpoint* endpoint;         // Null if this node joins others.
  std::optional<GuardedChild> companion;  // Started beside the agents.
  RunFolders folders = {};
  KeptRun kept = {};
  std::vector<NodeMemory> memory = {};                   // By local node.
  std::vector<std::optional<DecidedCode>> decided = {};  // By local node.
};

std::vector<GuardedChild> children_of(GuardedRun& run) {
  const NodeContext& context = run.context;
  const bool verbose = context.options.verbosity == Verbosity::kVerbose;
  std::vector<GuardedChild> children;
  if (run.companion) children.push_back(*run.companion);
  if (run.endpoint) {
    children.push_back(daemon_child(*run.endpoint, run.folders.state.path(), verbose));
  }
  for (std::size_t i = 0; i < run.memory.size(); ++i) {
    children.push_back(memory_child(context, run.memory[i], static_cast<int>(i)));
  }
  run.decided.resize(static_cast<std::size_t>(context.plan.local_nodes));
  for (int index = 0; index < context.plan.local_nodes; ++index) {
    auto& decided = run.decided[static_cast<std::size_t>(index)];
    if (auto made = DecidedCode::make()) decided = std::move(*made);
    children.push_back(agent_child(context, index, decided ? &*decided : nullptr));
  }
  if (context.options.preflight == Preflight::kFast) children.push_back(preflight_child(context));
  return children;
}

void tidy_up(GuardedRun& run) {
  const std::string& report = run.folders.report.path();
  if (run.context.options.report && !report.empty()) print_report(report);
  write_page(run.context, report);
  collect_endings(run.kept, run.context);
  run.folders.remove();
}

// Reports in place of the first agent, which was killed and reports for the run.
void report_killed(GuardedRun& run, const AgentKilled& killed) {
  if (killed.agent.name != agent_name(run.context, 0)) return;
  using Kind = rendezvous::Verdict::Kind;
  const Kind kind = killed.by_us ? Kind::kInterrupted : Kind::kAgentKilled;
  write_agent_killed(run.context, kind, killed.exit_code, killed.text);
  remember_killed(run.kept, killed, rendezvous::kind_name(kind));
}

struct FileOfUser {
  const char* flag;
  const std::optional<std::string>& path;
};

std::vector<FileOfUser> files_of_user(const Options& options) {
  return {{"--error-file", options.error_file}, {"--report-html", options.report_html}};
}

// Changes nothing yet: the start can still fail.
// Else it is noticed only as a bundle is lost.
Result<void> check_bundle_folder(const std::string& folder) {
  const int error = ddprun::make_folders(folder);
  if (error == 0 && ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
  errno = error == 0 ? errno : error;
  return errno_failure("--bundle-folder " + folder + " cannot be written");
}

Result<void> check_files(const Options& options) {
  for (const auto& [flag, path] : files_of_user(options)) {
    const auto ready = path ? check_user_file(*path) : Result<void>();
    if (ready) continue;
    return Failure{ready.error().code, flag + (" " + *path) + " " + ready.error().context};
  }
  return {};
}

// Removes files of an earlier run, which would be taken for this one's.
void clear_files(const Options& options) {
  for (const auto& [flag, path] : files_of_user(options)) {
    if (path) clear_user_file(*path);
  }
}

Result<void> make_memory_folders(GuardedRun& run) {
  if (!run.context.options.memory_folder) return {};
  if (const auto made = run.folders.memory.make(); !made) return made.error();
  auto memory = make_memory(run.context, run.folders.memory.path());
  if (!memory) return memory.error();
  run.memory = std::move(*memory);
  for (const NodeMemory& node : run.memory) run.context.memory.push_back(node.place);
  return {};
}

// Where the agent saves its fork server for later runs. Null: it does not.
UniqueFd make_image(NodeContext& context) {
  if (context.preload.empty() || context.options.preload_keep == 0) return {};
  auto file = agent::make_image_file();
  if (!file) {
    log::warning("nothing is kept for later runs: " + to_string(file.error()));
    return {};
  }
  context.image_file = file->get();
  return std::move(*file);
}

void keep_image(const UniqueFd& file, int minutes) {
  if (const auto facts = agent::facts_of(file.get())) agent::make_room_for(facts->key);
  (void)agent::keep_for(file.get(), std::chrono::minutes(minutes));
  const auto holder = start_holder(file);
  if (!holder) return log::warning(to_string(holder.error()));
  log::info(agent::kept_sentence(*holder, file.get()));
}

// Starts everything and watches over it until the run is over.
Result<int> guard_run(GuardedRun run) {
  NodeContext& context = run.context;
  GuardianPlan guardian;
  context.job.launcher_pid = ::getpid();
  context.started_utc = utc_now();
  const auto& memory = context.options.memory_folder;
  if (memory && !memory->at.empty()) run.folders.memory.place_in(memory->at);
  auto keeper = keeper_task(context, run.folders);
  if (!keeper) return keeper.error();
  guardian.keeper = std::move(*keeper);
  guardian.also_forwarded = handled_signals(context.options);
  guardian.prepare = [&]() -> Result<void> {
    context.job.cgroup = make_job_cgroup(guardian.keeper->cgroup);
    if (const auto made = make_folders(run.folders, context, run.endpoint); !made) {
      return made.error();
    }
    if (const auto made = make_memory_folders(run); !made) return made.error();
    clear_files(context.options);  // Every step that may fail has been done.
    guardian.children = children_of(run);
    return {};
  };
  guardian.started = [&] { run.kept = remember_start(context); };
  guardian.signalled = [&](int signal) { remember_signal(run.kept, context.options, signal); };
  guardian.tidy_up = [&] { tidy_up(run); };
  guardian.on_agent_killed = [&](const AgentKilled& killed) { report_killed(run, killed); };
  guardian.ended = [&](int status) { remember_end(run.kept, context, status); };
  const UniqueFd image = make_image(context);
  auto status = guard(guardian);
  if (image && agent::is_sealed(image.get())) keep_image(image, context.options.preload_keep);
  return status;
}

}  // namespace

Result<int> launch(Options options, const Environment& environment,
                   std::optional<GuardedChild> companion) {
  auto decided = decide(std::move(options), environment);
  if (!decided) return decided.error();
  if (decided->options.dry_run) return print_dry_run(*decided);
  if (decided->options.preflight == Preflight::kFull) {
    if (const auto fit = check_fitness(*decided); !fit) return fit.error();
  }
  NodeContext context{std::move(*decided)};
  offer_nccl_profiler(environment);
  // For the processes of this node, and their workers.
  if (const PortRange& range = context.options.port_range; !range.is_any()) {
    ::setenv(kPortRangeVariable, range.text().c_str(), 1);
  }
  if (const auto& folder = context.options.bundle_folder) {
    if (const auto ready = check_bundle_folder(*folder); !ready) return ready.error();
    ::setenv(kBundlesVariable, std::filesystem::absolute(*folder).c_str(), 1);
  }
  for (const auto& [variable, value] : context.options.exported) {
    ::setenv(variable.c_str(), value.c_str(), 1);
  }
  watch_python(context, environment);
  if (const auto ready = check_files(context.options); !ready) return ready.error();
  if (const int rank = context.options.stdin_for.local_rank; rank >= context.local_world_size) {
    return Failure{Errc::kBadOption, "--stdin " + std::to_string(rank) +
                                         ": the local ranks are 0 to " +
                                         std::to_string(context.local_world_size - 1)};
  }
  if (const auto& memory = context.options.memory_folder) {
    const auto fits = check_memory(*memory, context.plan.local_nodes);
    if (!fits) return fits.error();
  }
  auto token = obtain_token(context.plan, value_of(environment, kTokenVariable));
  if (!token) return token.error();
  context.token = *token;
  const auto endpoint = hosted_endpoint(context);
  if (!endpoint) return endpoint.error();
  if (*endpoint) context.store_clients_fd = (*endpoint)->store_taker.get();
  print_how_to_join(context);
  return guard_run({context, endpoint->get(), std::move(companion)});
}

}  // namespace ddprun::launcher
