#include "launcher/hosts/hosts_run.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "common/exit_status.h"
#include "common/system/limits.h"
#include "common/system/log.h"
#include "common/system/random_id.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "launcher/hosts/control_stdin.h"
#include "launcher/hosts/orders.h"
#include "launcher/hosts/ssh_node.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/decide.h"
#include "launcher/plan/dry_run.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using State = RemoteNode::State;

constexpr Milliseconds kConnectLimit = 30s;  // ssh's own limit is 10 s for the connection alone.
constexpr Milliseconds kGoodbyeLimit = 5s;   // For those that never got orders.
constexpr Milliseconds kStopSlack = 30s;     // Beyond the grace that workers get.
constexpr int kImpatientMax = 2;  // So often in vain: the nodes are left to end by themselves.

class HostsRun {
 public:
  HostsRun(const Options& options, const MachineFacts& facts, const Environment& environment,
           std::string token)
      : options_(options), facts_(facts), environment_(environment), token_(std::move(token)) {}

  Result<int> run();

 private:
  Result<void> start_all();
  void wait();
  void handle_signals();
  void forward(ReceivedSignal received);
  void serve(SshNode& node);
  void decide();
  void give_up();
  void order_all(const std::vector<SshNode*>& ready);
  void kill_all();
  void enforce_deadlines();
  int exit_code() const;
  bool any(State state) const;
  bool all_ended() const;

  const Options& options_;
  const MachineFacts& facts_;
  const Environment& environment_;
  const std::string token_;
  std::string nonce_ = random_hex(8);
  std::vector<std::unique_ptr<SshNode>> nodes_;
  UniqueFd signals_;
  TimePoint connect_until_ = Clock::now() + kConnectLimit;
  std::optional<TimePoint> kill_at_;
  bool decided_ = false;
  Impatience impatience_;
  int impatient_ = 0;            // Signals that meant "now".
  std::optional<int> own_code_;  // Ended by us, not by the run.
  int first_code_ = 0;           // Of the first node that ended with another than 0.
};

bool HostsRun::any(State state) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return node->remote.state() == state; });
}

bool HostsRun::all_ended() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const auto& node) { return node->remote.state() == State::kEnded; });
}

Result<void> HostsRun::start_all() {
  const Limits before = raise_soft_limits();
  const std::string self = own_program();
  for (const HostEntry& host : options_.hosts) {
    auto process = start_piped(far_end_command(host, options_.ssh, facts_));
    if (!process) return process.error();
    set_soft_limits(process->pid, before);  // Nothing looks at them before its orders come.
    nodes_.push_back(std::make_unique<SshNode>(host, self, std::move(*process)));
  }
  return {};
}

Result<int> HostsRun::run() {
  auto signals = signals_to_pass_on();
  if (!signals) return signals.error();
  signals_ = std::move(*signals);
  if (const auto started = start_all(); !started) {
    kill_all();
    return started.error();
  }
  while (!all_ended()) {
    wait();
    handle_signals();
    for (const auto& node : nodes_) serve(*node);
    if (!decided_ && !any(State::kConnecting)) decide();
    enforce_deadlines();
  }
  return exit_code();
}

// Until something can be read, written or reaped, or a deadline passes.
void HostsRun::wait() {
  std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}};
  for (const auto& node : nodes_) node->add_polls(polls);
  std::optional<TimePoint> next = kill_at_;
  if (!decided_ && (!next || connect_until_ < *next)) next = connect_until_;
  int timeout = -1;
  if (next) {
    const auto left = std::chrono::ceil<Milliseconds>(*next - Clock::now());
    timeout = static_cast<int>(std::clamp<long>(left.count(), 0, 60'000));
  }
  ::poll(polls.data(), polls.size(), timeout);
}

void HostsRun::serve(SshNode& node) {
  if (!node.serve()) return;
  const auto code = node.remote.exit_code();
  if (first_code_ == 0 && code) first_code_ = *code;
  if (node.remote.was_lost()) log::warning(node.remote.why());
}

// Everybody has answered or failed: enough of them?
void HostsRun::decide() {
  decided_ = true;
  std::vector<SshNode*> ready;
  for (const auto& node : nodes_) {
    if (node->remote.state() == State::kReady) ready.push_back(node.get());
  }
  const int all = static_cast<int>(nodes_.size());
  const int needed = options_.nnodes ? options_.nnodes->min : all;
  const bool enough = static_cast<int>(ready.size()) >= needed && !own_code_;
  for (const auto& node : nodes_) {
    if (!node->remote.never_ran() || own_code_) continue;
    enough ? log::warning(node->remote.why()) : log::error(node->remote.why());
  }
  return enough ? order_all(ready) : give_up();
}

void HostsRun::give_up() {
  if (!own_code_) own_code_ = kExitRendezvous;
  for (const auto& node : nodes_) node->hang_up();
  kill_at_ = Clock::now() + kGoodbyeLimit;
}

void HostsRun::order_all(const std::vector<SshNode*>& ready) {
  HostsMeeting meeting;
  meeting.endpoint = Endpoint{ready.front()->host.name, random_meeting_port()};
  if (options_.rdzv_endpoint) meeting.endpoint = *options_.rdzv_endpoint;
  meeting.run_id = options_.rdzv_id.value_or("hosts-" + random_hex(4));
  meeting.nodes = static_cast<int>(ready.size());
  Orders orders{.nonce = nonce_,
                .token = token_,
                .working_folder = {},
                .argv = {},
                .environment = carried_environment(options_, environment_)};
  orders.working_folder = std::filesystem::current_path();
  int node_rank = 0;
  for (SshNode* node : ready) {
    orders.argv = node_argv(options_, meeting, node->host, node_rank++);
    const std::string body = encode(orders);
    if (body.size() > kOrdersBytesMax) {
      log::error("the command line and the variables are longer than --hosts can carry");
      own_code_ = kExitUsage;
      return give_up();
    }
    node->queue(body);
    node->remote.ordered(nonce_);
  }
}

void HostsRun::handle_signals() {
  const auto next = [this] { return read_signal(signals_.get()); };
  for (auto received = next(); received.signal != 0; received = next()) forward(received);
}

void HostsRun::forward(ReceivedSignal received) {
  const int signal = received.signal;
  const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
  const bool now = impatience_.signalled(signal, received.origin);
  if (now) ++impatient_;
  if (ends && (impatient_ >= kImpatientMax || !decided_)) {
    own_code_ = exit_code_of_signal(signal);
    return kill_all();
  }
  for (const auto& node : nodes_) {
    if (node->remote.state() != State::kRunning) continue;
    node->queue(now ? std::string(kKillNow) : encode_signal(signal));
  }
  if (ends && !kill_at_) kill_at_ = Clock::now() + options_.shutdown_timeout + kStopSlack;
}

// Of ssh only: whoever listens at its far end sees that the connection is gone, and ends.
void HostsRun::kill_all() {
  for (const auto& node : nodes_) node->kill();
}

void HostsRun::enforce_deadlines() {
  if (!decided_ && Clock::now() >= connect_until_) {
    for (const auto& node : nodes_) {
      if (node->remote.state() == State::kConnecting) node->kill();
    }
    connect_until_ = Clock::now() + kConnectLimit;  // They are reaped long before.
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    kill_at_.reset();
    kill_all();
  }
}

int HostsRun::exit_code() const {
  if (own_code_) return *own_code_;
  if (first_code_ != 0) return first_code_;
  const bool none_told = std::none_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
    return node->remote.exit_code().has_value();
  });
  return none_told ? kExitFailed : kExitOk;
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
