#include "launcher/hosts/discovery_run.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/keeper.h"
#include "launcher/guard/scratch.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/host_watch.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/decide.h"
#include "launcher/plan/dry_run.h"
#include "launcher/plan/gather_facts.h"
#include "launcher/plan/resolve_name.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kWordsMax = 300;

// Reads without waiting; closes the descriptor at the end of the input.
std::string read_some(UniqueFd& fd) {
  char buffer[65536];
  const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
  if (n > 0) return {buffer, static_cast<std::size_t>(n)};
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) fd.reset();
  return {};
}

// The end of `text` in one line, without control characters.
std::string one_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  std::string line = text.substr(0, end + 1);
  if (line.size() > kWordsMax) line = "..." + line.substr(line.size() - kWordsMax);
  for (char& letter : line) {
    if (letter == '\n') letter = '|';
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = ' ';
  }
  return line;
}

}  // namespace

std::optional<HostListing> DiscoveryScript::start() {
  DDPRUN_ASSERT(!runs());
  listing_ = {};
  if (!reap_killed()) return std::nullopt;  // Do not run two scripts: no answer this time.
  auto process = start_program(argv_);
  if (!process) {
    listing_.cannot_start = to_string(process.error());
    return listing_;
  }
  process_ = std::move(*process);
  process_.input.reset();
  return std::nullopt;
}

void DiscoveryScript::add_polls(std::vector<pollfd>& polls) const {
  for (const UniqueFd* fd : {&process_.pidfd, &process_.output, &process_.errors}) {
    if (*fd) polls.push_back({fd->get(), POLLIN, 0});
  }
}

void DiscoveryScript::read_output() {
  while (process_.output && listing_.output.size() <= kHostLinesBytesMax) {
    const std::string text = read_some(process_.output);
    if (text.empty()) break;
    listing_.output += text;
  }
  listing_.is_too_long = listing_.output.size() > kHostLinesBytesMax;
}

void DiscoveryScript::read_errors() {
  while (process_.errors) {
    const std::string text = read_some(process_.errors);
    if (text.empty()) break;
    listing_.last_words += text;
    if (listing_.last_words.size() <= 2 * kWordsMax) continue;
    listing_.last_words.erase(0, listing_.last_words.size() - 2 * kWordsMax);
    return;  // A script that writes without end must not keep this process.
  }
}

std::optional<HostListing> DiscoveryScript::serve() {
  if (!runs()) return std::nullopt;
  // Read this before the pipes, so that the script's last output is in them if it has ended.
  const bool is_over = process_.has_ended();
  read_output();
  read_errors();
  if (!is_over && !listing_.is_too_long) return std::nullopt;
  if (is_over) {
    ddprun::kill(process_);  // Including all processes that it has started.
    listing_.exit_code = reap(process_);
    process_ = ChildProcess();
  }
  kill();
  listing_.last_words = one_line(listing_.last_words);
  return std::exchange(listing_, {});
}

void DiscoveryScript::kill() {
  if (!runs()) return;
  ddprun::kill(process_);
  killed_ = std::exchange(process_, ChildProcess());
}

// Does not wait: a file system that hangs may keep the script from ending.
bool DiscoveryScript::reap_killed() {
  if (killed_.pid == 0) return true;
  if (!killed_.has_ended()) return false;
  (void)reap(killed_);
  killed_ = ChildProcess();
  return true;
}

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kJoinTimeout = 600s;  // Like the daemon's.

// Common to all nodes.
struct Meeting {
  const Options& options;
  const Environment& environment;
  const MachineFacts& facts;
  HostsMeeting place;
  std::string token;
  const std::string job = random_hex(8);
};

HostWatch::Rules rules_of(const Options& options) {
  DDPRUN_ASSERT(options.nnodes);
  std::string script;
  for (const std::string& word : options.host_discovery)
    script += (script.empty() ? "" : " ") + word;
  return {.script = script,
          .nnodes = *options.nnodes,
          .period = options.host_discovery_period,
          .wait_max = options.rdzv_conf.join_timeout.value_or(kJoinTimeout),
          .grace = options.shutdown_timeout};
}

// The child of the guardian that has the nodes.
class DiscoveryRun {
 public:
  explicit DiscoveryRun(const Meeting& meeting)
      : meeting_(meeting),
        script_(meeting.options.host_discovery),
        watch_(rules_of(meeting.options), Clock::now()),
        fleet_(meeting.options.ssh, meeting.facts) {}

  int run();

 private:
  void step(const HostWatch::Event& event);
  void act(const HostWatch::RunScript&);
  void act(const HostWatch::KillScript&) { script_.kill(); }
  void act(const HostWatch::StartNode& start);
  void act(const HostWatch::OrderNode& order);
  void act(const HostWatch::WithdrawNode& withdraw);
  void act(const HostWatch::KillNode& kill);
  void act(const HostWatch::Report& report);
  void act(const HostWatch::End& end) { exit_code_ = end.exit_code; }
  void wait() const;
  void serve();
  void pass_signals_on();

  const Meeting& meeting_;
  DiscoveryScript script_;
  HostWatch watch_;
  Fleet fleet_;
  std::deque<HostWatch::Event> events_;  // Not taken yet.
  std::optional<int> exit_code_;
};

int DiscoveryRun::run() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Then the nodes' input ends.
  if (const auto taken = fleet_.take_signals(); !taken) {
    log::error(to_string(taken.error()));
    return kExitFailed;
  }
  step(HostWatch::Tick{});
  while (!exit_code_) {
    if (events_.empty()) wait();
    serve();
    if (events_.empty()) events_.emplace_back(HostWatch::Tick{});
    while (!events_.empty() && !exit_code_) {
      const HostWatch::Event event = std::move(events_.front());
      events_.pop_front();
      step(event);
    }
  }
  fleet_.kill();
  return *exit_code_;
}

void DiscoveryRun::step(const HostWatch::Event& event) {
  for (const HostWatch::Action& action : watch_.step(event, Clock::now())) {
    std::visit([this](const auto& what) { act(what); }, action);
  }
}

// The script has the job's mark: the keeper kills what carries it. Nodes on this machine do not
// carry it, because they end by themselves and clean up.
void DiscoveryRun::act(const HostWatch::RunScript&) {
  ::setenv(kJobVariable, meeting_.job.c_str(), 1);
  auto failed = script_.start();
  ::unsetenv(kJobVariable);
  if (failed) events_.emplace_back(HostWatch::Listed{std::move(*failed)});
}

void DiscoveryRun::act(const HostWatch::StartNode& start) {
  const auto started = fleet_.start(start.host);
  if (started) return;
  const std::string why = to_string(started.error());
  events_.emplace_back(HostWatch::NodeEnded{start.host.name, std::nullopt, why});
}

void DiscoveryRun::act(const HostWatch::OrderNode& order) {
  SshNode* node = fleet_.find(order.host);
  DDPRUN_ASSERT(node);
  const Options& options = meeting_.options;
  const bool fits =
      fleet_.order(*node, {.nonce = {},
                           .token = meeting_.token,
                           .working_folder = std::filesystem::current_path(),
                           .argv = node_argv(options, meeting_.place, node->host, std::nullopt),
                           .environment = carried_environment(options, meeting_.environment)});
  if (fits) return;
  log::error("the command line and the variables are longer than ssh's input can carry");
  exit_code_ = kExitUsage;
}

void DiscoveryRun::act(const HostWatch::WithdrawNode& withdraw) {
  if (SshNode* node = fleet_.find(withdraw.host)) node->queue(std::string(kWithdrawn));
}

void DiscoveryRun::act(const HostWatch::KillNode& kill) {
  if (SshNode* node = fleet_.find(kill.host)) node->kill();
}

void DiscoveryRun::act(const HostWatch::Report& report) {
  using enum HostWatch::Report::Level;
  if (report.level == kInfo) log::info(report.text);
  if (report.level == kWarning) log::warning(report.text);
  if (report.level == kError) log::error(report.text);
}

void DiscoveryRun::wait() const {
  std::vector<pollfd> polls;
  script_.add_polls(polls);
  fleet_.wait(watch_.next_deadline(), std::move(polls));
}

void DiscoveryRun::serve() {
  pass_signals_on();
  for (const Fleet::News& news : fleet_.serve()) {
    const std::string host = news.node->host.name;
    if (news.is_copying) events_.emplace_back(HostWatch::NodeCopies{host});
    if (news.is_ready) events_.emplace_back(HostWatch::NodeReady{host});
    if (!news.has_ended) continue;
    const auto code = news.node->remote.exit_code();
    events_.emplace_back(HostWatch::NodeEnded{host, code, code ? "" : news.node->remote.why()});
    fleet_.remove(*news.node);
  }
  if (auto listing = script_.serve()) events_.emplace_back(HostWatch::Listed{std::move(*listing)});
}

void DiscoveryRun::pass_signals_on() {
  const auto next = [this] { return fleet_.next_signal(); };
  for (auto received = next(); received.signal != 0; received = next()) {
    const int signal = received.signal;
    const bool now = received.origin == Origin::kNow;
    fleet_.pass_on(signal, now);
    const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
    if (ends) events_.emplace_back(HostWatch::Interrupted{.signal = signal, .now = now});
  }
}

// The guardian of the daemon and of the child that has the nodes.
int guard_discovery(const Meeting& meeting, const HostedEndpoint* endpoint) {
  ScratchFolder state("ddprun-", ScratchFolder::Use::kState);
  GuardianPlan guardian;
  guardian.keeper = KeeperTask{
      .mark = kJobVariable + ("=" + meeting.job), .cgroup = {}, .folders = state.places()};
  guardian.prepare = [&]() -> Result<void> {
    if (endpoint) {
      if (const auto made = state.make(); !made) return made.error();
      const bool verbose = meeting.options.verbosity == Verbosity::kVerbose;
      guardian.children.push_back(daemon_child(*endpoint, state.path(), verbose));
    }
    guardian.children.push_back({.name = "the process that has the nodes",
                                 .body = [&] { return DiscoveryRun(meeting).run(); },
                                 .takes_signals = true,
                                 .passes_now_on = true});
    return {};
  };
  guardian.tidy_up = [&] { state.remove(); };
  return guard(guardian);
}

Result<std::unique_ptr<HostedEndpoint>> endpoint_of(RendezvousPlan& plan, const std::string& token,
                                                    const DaemonPages& pages) {
  if (plan.mode != RendezvousPlan::Mode::kHost) return std::unique_ptr<HostedEndpoint>();
  auto opened = open_endpoint(plan, token, pages);
  if (opened && !*opened && plan.token == RendezvousPlan::Token::kMint) {
    return missing_token(plan.endpoint);
  }
  return opened;
}

}  // namespace

Result<int> run_discovery(Options options, const Environment& environment) {
  if (const auto failure = missing_variable(options.env, environment)) return *failure;
  if (const auto resolved = resolve_local_address(options); !resolved) return resolved.error();
  MachineFacts facts = gather_facts(environment);
  if (const std::string name = name_to_resolve(options); !name.empty()) {
    facts.endpoint_addresses = resolve_name(name);
  }
  auto plan = make_plan(options, facts);
  if (!plan) return plan.error();
  HostsMeeting place{.endpoint = plan->endpoint,
                     .run_id = options.rdzv_id.value_or("hosts-" + random_hex(4)),
                     .nodes = options.nnodes->max};
  if (options.dry_run) {
    write_output(dry_run_of_discovery(options, environment, place));
    return kExitOk;
  }
  auto token = obtain_token(*plan, value_of(environment, kTokenVariable));
  if (!token) return token.error();
  const auto endpoint = endpoint_of(*plan, *token, options.pages);
  if (!endpoint) return endpoint.error();
  place.endpoint = plan->endpoint;
  return guard_discovery({options, environment, facts, place, *token}, endpoint->get());
}

}  // namespace ddprun::launcher
