#include "launcher/hosts/hosts_run.h"

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "common/exit_status.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "launcher/guard/guardian_policy.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/decide.h"
#include "launcher/plan/dry_run.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using State = RemoteNode::State;

constexpr Milliseconds kConnectLimit = 30s;    // ssh's own limit is 10 s for the connection alone.
constexpr Milliseconds kGoodbyeLimit = 5s;     // For far ends that never got orders.
constexpr Milliseconds kNodesStopSlack = 30s;  // Beyond the grace that workers get.
constexpr int kUrgentSignalsMax = 2;  // After so many signals in vain, the nodes end by themselves.

// Decides once when the hosts have answered or failed, gives orders to those that are ready, and
// ends as their nodes end.
class HostsRun {
 public:
  HostsRun(const Options& options, const MachineFacts& facts, const Environment& environment,
           std::string token)
      : options_(options),
        environment_(environment),
        token_(std::move(token)),
        fleet_(options.ssh, facts) {}

  Result<int> run();

 private:
  Result<void> start_all();
  std::optional<TimePoint> next_deadline() const;
  void forward(ReceivedSignal received);
  void note_end(const SshNode& node);
  void decide();
  void give_up();
  void order_all(const std::vector<SshNode*>& ready);
  void enforce_deadlines();
  int exit_code() const;

  const Options& options_;
  const Environment& environment_;
  const std::string token_;
  Fleet fleet_;
  TimePoint connect_until_ = Clock::now() + kConnectLimit;
  TimePoint copied_until_ = Clock::now() + kCopyLimit;
  std::optional<TimePoint> kill_at_;
  bool decided_ = false;
  InterruptCounter interrupts_;
  int urgent_signals_ = 0;       // Signals that meant "now".
  std::optional<int> own_code_;  // This process ended the run.
  int first_code_ = 0;           // Of the first node that failed.
};

Result<void> HostsRun::start_all() {
  const Limits before = raise_soft_limits();
  for (const HostEntry& host : options_.hosts) {
    if (const auto started = fleet_.start(host, before); !started) return started.error();
  }
  return {};
}

Result<int> HostsRun::run() {
  if (const auto taken = fleet_.take_signals(); !taken) return taken.error();
  if (const auto started = start_all(); !started) {
    fleet_.kill();
    return started.error();
  }
  while (!fleet_.all_ended()) {
    fleet_.wait(next_deadline());
    const auto next = [this] { return fleet_.next_signal(); };
    for (auto received = next(); received.signal != 0; received = next()) forward(received);
    for (const Fleet::News& news : fleet_.serve()) {
      if (news.has_ended) note_end(*news.node);
    }
    if (!decided_ && !fleet_.any(State::kConnecting)) decide();
    enforce_deadlines();
  }
  return exit_code();
}

std::optional<TimePoint> HostsRun::next_deadline() const {
  if (decided_) return kill_at_;
  const TimePoint first = Clock::now() < connect_until_ ? connect_until_ : copied_until_;
  return std::min(first, kill_at_.value_or(first));
}

void HostsRun::note_end(const SshNode& node) {
  const auto code = node.remote.exit_code();
  if (first_code_ == 0 && code) first_code_ = *code;
  if (node.remote.was_lost()) log::warning(node.remote.why());
}

// Each host has answered or failed. Are enough of them ready?
void HostsRun::decide() {
  decided_ = true;
  std::vector<SshNode*> ready;
  for (const auto& node : fleet_.nodes()) {
    if (node->remote.state() == State::kReady) ready.push_back(node.get());
  }
  const int all = static_cast<int>(fleet_.nodes().size());
  const int needed = options_.nnodes ? options_.nnodes->min : all;
  const bool enough = static_cast<int>(ready.size()) >= needed && !own_code_;
  for (const auto& node : fleet_.nodes()) {
    if (!node->remote.never_ran() || own_code_) continue;
    enough ? log::warning(node->remote.why()) : log::error(node->remote.why());
  }
  return enough ? order_all(ready) : give_up();
}

void HostsRun::give_up() {
  if (!own_code_) own_code_ = kExitRendezvous;
  fleet_.hang_up();
  kill_at_ = Clock::now() + kGoodbyeLimit;
}

void HostsRun::order_all(const std::vector<SshNode*>& ready) {
  HostsMeeting meeting;
  meeting.endpoint = Endpoint{ready.front()->host.name, random_meeting_port(options_.port_range)};
  if (options_.rdzv_endpoint) meeting.endpoint = *options_.rdzv_endpoint;
  meeting.run_id = options_.rdzv_id.value_or("hosts-" + random_hex(4));
  meeting.nodes = static_cast<int>(ready.size());
  Orders orders{.nonce = {},
                .token = token_,
                .working_folder = std::filesystem::current_path(),
                .argv = {},
                .environment = carried_environment(options_, environment_)};
  int node_rank = 0;
  for (SshNode* node : ready) {
    orders.argv = node_argv(options_, meeting, node->host, node_rank++);
    if (fleet_.order(*node, orders)) continue;
    log::error("the command line and the variables are longer than --hosts can carry");
    own_code_ = kExitUsage;
    return give_up();
  }
}

void HostsRun::forward(ReceivedSignal received) {
  const int signal = received.signal;
  const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
  const bool now = interrupts_.signalled(signal, received.origin);
  if (now) ++urgent_signals_;
  if (ends && (urgent_signals_ >= kUrgentSignalsMax || !decided_)) {
    own_code_ = exit_code_of_signal(signal);
    return fleet_.kill();
  }
  fleet_.pass_on(signal, now);
  if (ends && !kill_at_) kill_at_ = Clock::now() + options_.shutdown_timeout + kNodesStopSlack;
}

void HostsRun::enforce_deadlines() {
  if (!decided_ && Clock::now() >= connect_until_) {
    const bool may_copy = Clock::now() < copied_until_;
    for (const auto& node : fleet_.nodes()) {
      if (node->remote.state() != State::kConnecting) continue;
      if (!may_copy || !node->remote.is_copying()) node->kill();
    }
    if (!may_copy) copied_until_ = Clock::now() + kConnectLimit;  // All are reaped long before.
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    kill_at_.reset();
    fleet_.kill();
  }
}

int HostsRun::exit_code() const {
  if (own_code_) return *own_code_;
  if (first_code_ != 0) return first_code_;
  const bool none_known =
      std::none_of(fleet_.nodes().begin(), fleet_.nodes().end(),
                   [](const auto& node) { return node->remote.exit_code().has_value(); });
  return none_known ? kExitFailed : kExitOk;
}

}  // namespace

Result<int> run_hosts(const Options& options, const MachineFacts& facts,
                      const Environment& environment) {
  if (const auto failure = unreachable_names(options.hosts)) return *failure;
  if (const auto failure = missing_variable(options.env, environment)) return *failure;
  if (options.dry_run) {
    std::vector<std::vector<std::string>> commands;
    for (const HostEntry& host : options.hosts) {
      commands.push_back(way_to(host, options.ssh, facts));
    }
    write_output(dry_run_of_hosts(options, environment, commands));
    return kExitOk;
  }
  RendezvousPlan plan;
  plan.mode = options.rdzv_endpoint ? RendezvousPlan::Mode::kJoin : RendezvousPlan::Mode::kHost;
  if (options.rdzv_endpoint) plan.endpoint = *options.rdzv_endpoint;
  if (const auto failure = choose_token(options, facts, plan)) return *failure;
  auto token = obtain_token(plan, value_of(environment, kTokenVariable));
  if (!token) return token.error();
  return HostsRun(options, facts, environment, std::move(*token)).run();
}

}  // namespace ddprun::launcher
