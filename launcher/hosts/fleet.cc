#include "launcher/hosts/fleet.h"

#include <algorithm>
#include <csignal>

#include "common/system/child_process.h"
#include "common/system/descriptors.h"

namespace ddprun::launcher {

using State = RemoteNode::State;

Result<void> Fleet::take_signals() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    if (!stays_ignored(signal)) ::sigaddset(&handled, signal);
  }
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return refused_call("receiving signals", "signalfd", "Linux 2.6.27");
  return {};
}

Result<SshNode*> Fleet::start(const HostEntry& host, const std::optional<Limits>& limits,
                              std::function<bool(std::string_view)> take) {
  auto process = start_program(far_end_command(host, ssh_, facts_));
  if (!process) return process.error();
  if (limits) set_soft_limits(process->pid, *limits);  // A far end uses them after its orders only.
  nodes_.push_back(std::make_unique<SshNode>(host, self_, std::move(*process), std::move(take)));
  return nodes_.back().get();
}

bool Fleet::order(SshNode& node, Orders orders) {
  orders.nonce = nonce_;
  const std::string body = encode(orders);
  if (body.size() > kOrdersBytesMax) return false;
  node.queue(body);
  node.remote.ordered(nonce_);
  return true;
}

void Fleet::pass_on(int signal, bool now) {
  for (const auto& node : nodes_) {
    if (node->remote.state() != State::kRunning) continue;
    node->queue(now ? std::string(kKillNow) : encode_signal(signal));
  }
}

void Fleet::hang_up() {
  for (const auto& node : nodes_) node->hang_up();
}

void Fleet::kill() {
  for (const auto& node : nodes_) node->kill();
}

void Fleet::wait(std::optional<TimePoint> until, std::vector<pollfd> others) const {
  if (signals_) others.push_back({signals_.get(), POLLIN, 0});
  for (const auto& node : nodes_) node->add_polls(others);
  const TimePoint soon = TimePoint::clock::now() + kLookAgain;  // Whether a process has ended.
  if (!has_pidfds() && (!until || *until > soon)) until = soon;
  poll_until(others, until);
}

std::vector<Fleet::News> Fleet::serve() {
  std::vector<News> news;
  for (const auto& node : nodes_) {
    const bool was_connecting = node->remote.state() == State::kConnecting;
    const bool was_copying = node->remote.is_copying();
    const bool has_ended = node->serve();
    const bool is_copying = !was_copying && node->remote.is_copying();
    // A far end that became ready and ended between two calls is reported as ended only.
    const bool is_ready = was_connecting && node->remote.state() == State::kReady;
    if (is_copying || is_ready || has_ended) {
      news.push_back({node.get(), is_copying, is_ready, has_ended});
    }
  }
  return news;
}

void Fleet::remove(const SshNode& node) {
  std::erase_if(nodes_, [&](const auto& one) { return one.get() == &node; });
}

SshNode* Fleet::find(std::string_view host) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const auto& node) { return node->host.name == host; });
  return found == nodes_.end() ? nullptr : found->get();
}

bool Fleet::any(State state) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return node->remote.state() == state; });
}

bool Fleet::all_ended() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const auto& node) { return node->remote.state() == State::kEnded; });
}

}  // namespace ddprun::launcher
