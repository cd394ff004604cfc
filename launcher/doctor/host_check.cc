#include "launcher/doctor/host_check.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/system/secrets.h"
#include "common/text/figures.h"
#include "launcher/doctor/doctor.h"
#include "launcher/doctor/network.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/doctor/versions.h"
#include "launcher/hosts/fleet.h"
#include "launcher/hosts/remote_node.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/gather_facts.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
namespace fact = doctor::fact;
using doctor::Facts;
using Clock = std::chrono::steady_clock;
using Kind = DoctorRequest::Kind;
using State = RemoteNode::State;

constexpr Milliseconds kReadyLimit = 30s;  // Like --hosts of a run.
constexpr Milliseconds kFactsLimit = 45s;  // Probes have limits of their own.
constexpr Milliseconds kLinksLimit = 30s;
constexpr Milliseconds kClockLimit = 5s;
constexpr Milliseconds kEndLimit = 3s;
constexpr int kClockRounds = 5;        // The fastest of them is the most exact.
constexpr std::size_t kPeersMax = 32;  // Per node.

// One host: its far end, the requests that it has not answered, and its facts. Does not wait.
class HostCheck {
 public:
  explicit HostCheck(std::string host) : host_(std::move(host)) {}
  Result<void> start(Fleet& fleet, const HostEntry& entry);  // Before all that follows.

  const std::string& host() const { return host_; }
  const SshNode* far_end() const { return far_end_; }
  // Where other nodes reach it: the address that the endpoint saw, else the host's name.
  std::string address() const;
  int workers() const;

  bool copies() const { return far_end_->remote.is_copying(); }
  bool runs() const { return far_end_->remote.state() != State::kEnded; }
  bool is_well() const { return error_.empty() && runs(); }
  bool waits() const { return is_well() && unanswered_ > 0; }

  // Notes an error if the far end is not ready. `late`: the time to connect is over.
  void admit(bool late);
  void order(Fleet& fleet, const Orders& orders);
  void request(const DoctorRequest& request);  // Does nothing if the host is not well.
  void give_up_answers(Milliseconds limit);
  void note_end();
  void kill() {
    if (runs()) far_end_->kill();
  }

  Facts& facts() { return facts_; }
  const Facts& facts() const { return facts_; }
  doctor::NodeFacts take() { return {host_, std::move(facts_), error_}; }
  NetworksOfNode networks() const { return doctor::networks_of({host_, facts_, error_}); }

 private:
  bool on_line(std::string_view line);

  const std::string host_;
  SshNode* far_end_ = nullptr;
  Facts facts_;
  std::string error_;   // Why no more answers will arrive, as a sentence.
  int unanswered_ = 0;  // Requests.
};

Result<void> HostCheck::start(Fleet& fleet, const HostEntry& entry) {
  const auto started =
      fleet.start(entry, {}, [this](std::string_view line) { return on_line(line); });
  if (!started) return started.error();
  far_end_ = *started;
  return {};
}

std::string HostCheck::address() const {
  const std::string seen = facts_.text(fact::kMeetAddress);
  return seen.empty() ? host_ : seen;
}

int HostCheck::workers() const {
  if (far_end_->host.workers) return *far_end_->host.workers;
  return static_cast<int>(facts_.get_or(kWorkers, std::int64_t{1}));
}

void HostCheck::admit(bool late) {
  if (far_end_->remote.state() == State::kReady) return;
  if (late && runs()) {
    error_ = host_ + " does not answer ssh";
    return kill();
  }
  error_ = far_end_->remote.why();
}

void HostCheck::order(Fleet& fleet, const Orders& orders) {
  if (!error_.empty() || fleet.order(*far_end_, orders)) return;
  error_ = "the command line and the variables are longer than ssh's input can carry";
  kill();
}

void HostCheck::request(const DoctorRequest& request) {
  if (!is_well()) return;
  far_end_->queue(encode(request));
  ++unanswered_;
}

bool HostCheck::on_line(std::string_view line) {
  auto answer = answer_in(line);
  if (!answer) return false;
  --unanswered_;
  if (*answer)
    facts_.merge(std::move(**answer));
  else
    error_ = host_ + " sends damaged " + answer->error().context;
  return true;
}

void HostCheck::give_up_answers(Milliseconds limit) {
  if (!waits()) return;
  error_ = host_ + " did not answer within " + seconds_text(limit);
  kill();
}

void HostCheck::note_end() {
  if (!error_.empty() || unanswered_ == 0) return;
  const auto code = far_end_->remote.exit_code();
  error_ = far_end_->remote.was_lost()
               ? far_end_->remote.why()
               : "ddprun on " + host_ + " ended with " + std::to_string(code.value_or(-1));
}

// The check of all hosts, step by step.
class Visit {
 public:
  Visit(const DoctorOptions& options, const Environment& environment)
      : options_(options),
        environment_(environment),
        fleet_(options.ssh, gather_facts(environment)) {}

  Result<doctor::HealthReport> run();

 private:
  Result<void> start();
  bool any_copies() const {
    return std::ranges::any_of(checks_, [](const auto& check) { return check->copies(); });
  }
  void order();
  void compare_clock(HostCheck& check);
  void measure_links();
  void send_round();
  void measure_other_networks();
  void hang_up();
  DoctorRequest to_peer(Kind kind, std::size_t peer) const;
  // Waits until every host that is well has answered all requests, or the time is over.
  void wait_for_answers(Milliseconds limit);
  void wait(TimePoint until);

  const DoctorOptions& options_;
  const Environment& environment_;
  const std::string nonce_ = random_hex(8);  // Of measured links.
  std::vector<std::unique_ptr<HostCheck>> checks_;
  Fleet fleet_;
};

Result<doctor::HealthReport> Visit::run() {
  ::signal(SIGPIPE, SIG_IGN);
  if (const auto started = start(); !started) return started.error();
  const TimePoint until = Clock::now() + kReadyLimit;
  while (fleet_.any(State::kConnecting) && Clock::now() < until) wait(until);
  const TimePoint copied_until = until - kReadyLimit + kCopyLimit;
  while (any_copies() && Clock::now() < copied_until) wait(copied_until);
  for (const auto& check : checks_) check->admit(Clock::now() >= until);
  order();
  for (const auto& check : checks_) check->request({.kind = Kind::kFacts});
  wait_for_answers(kFactsLimit);
  for (const auto& check : checks_) compare_clock(*check);
  measure_links();
  hang_up();
  doctor::Need need{.several = checks_.size() > 1,
                    .program = options_.program,
                    .memory_folder = static_cast<std::int64_t>(options_.memory_folder.bytes)};
  for (const auto& check : checks_) need.workers = std::max(need.workers, check->workers());
  std::vector<doctor::NodeFacts> nodes;
  for (const auto& check : checks_) nodes.push_back(check->take());
  return doctor::report_of_nodes(nodes, need);
}

Result<void> Visit::start() {
  for (const HostEntry& host : options_.hosts) {
    auto check = std::make_unique<HostCheck>(host.name);
    if (const auto started = check->start(fleet_, host); !started) return started.error();
    checks_.push_back(std::move(check));
  }
  return {};
}

void Visit::order() {
  Options carried;
  carried.env = options_.env;
  const Orders orders{.nonce = {},
                      .token = {},
                      .working_folder = std::filesystem::current_path(),
                      .argv = far_end_argv(options_),
                      .environment = carried_environment(carried, environment_)};
  for (const auto& check : checks_) check->order(fleet_, orders);
}

void Visit::wait(TimePoint until) {
  fleet_.wait(until);
  for (const Fleet::News& news : fleet_.serve()) {
    for (const auto& check : checks_) {
      if (news.has_ended && news.node == check->far_end()) check->note_end();
    }
  }
}

void Visit::wait_for_answers(Milliseconds limit) {
  const TimePoint until = Clock::now() + limit;
  const auto waits = [](const auto& check) { return check->waits(); };
  while (std::any_of(checks_.begin(), checks_.end(), waits) && Clock::now() < until) wait(until);
  for (const auto& check : checks_) check->give_up_answers(limit);
}

// Of several requests, the one with the fastest answer is the most exact.
void Visit::compare_clock(HostCheck& check) {
  std::optional<double> margin;
  for (int round = 0; round < kClockRounds && check.is_well(); ++round) {
    const std::int64_t sent = doctor::wall_ns();
    check.request({.kind = Kind::kClock});
    wait_for_answers(kClockLimit);
    const std::int64_t answered = doctor::wall_ns();
    const auto there = check.facts().get(fact::kWallNs);
    const double half = static_cast<double>(answered - sent) / 2e6;
    if (!there || (margin && half >= *margin)) continue;
    margin = half;
    check.facts().set(fact::kClockOffsetMs, static_cast<double>(*there - sent) / 1e6 - half);
    check.facts().set(fact::kClockMarginMs, half);
  }
}

DoctorRequest Visit::to_peer(Kind kind, std::size_t peer) const {
  const HostCheck& check = *checks_[peer];
  const auto port = check.facts().get(fact::kListening);
  return {.kind = kind,
          .name = check.host(),
          .host = check.address(),
          .port = static_cast<std::uint16_t>(port.value_or(0)),
          .nonce = nonce_};
}

void Visit::measure_links() {
  if (checks_.size() < 2) return;
  const std::uint16_t port = options_.port.value_or(random_meeting_port());
  for (std::size_t i = 0; i < checks_.size(); ++i) {
    const auto endpoint = static_cast<std::uint16_t>(i == 0 ? port : 0);
    checks_[i]->request({.kind = Kind::kListen, .port = endpoint, .nonce = nonce_});
  }
  wait_for_answers(kLinksLimit);
  for (const auto& check : checks_) {
    check->request(
        {.kind = Kind::kMeet, .host = checks_.front()->host(), .port = port, .nonce = nonce_});
  }
  wait_for_answers(kLinksLimit);
  const std::size_t peers = std::min(checks_.size() - 1, kPeersMax);
  for (std::size_t i = 0; i < checks_.size(); ++i) {
    for (std::size_t step = 1; step <= peers; ++step) {
      const std::size_t peer = (i + step) % checks_.size();
      if (checks_[peer]->is_well()) checks_[i]->request(to_peer(Kind::kReach, peer));
    }
  }
  wait_for_answers(kLinksLimit);
  send_round();
  measure_other_networks();
}

// Each node sends to the next one, all at once: a link is measured in both directions.
void Visit::send_round() {
  for (std::size_t i = 0; i < checks_.size(); ++i) {
    const std::size_t peer = (i + 1) % checks_.size();
    if (checks_[peer]->is_well()) checks_[i]->request(to_peer(Kind::kSend, peer));
  }
  wait_for_answers(kLinksLimit);
}

// As send_round(), over each network that all nodes have beside that of their names.
void Visit::measure_other_networks() {
  std::vector<NetworksOfNode> networks;
  for (const auto& check : checks_) {
    if (!check->is_well()) return;
    networks.push_back(check->networks());
  }
  for (const std::string& subnet : doctor::other_subnets(networks)) {
    for (std::size_t i = 0; i < checks_.size(); ++i) {
      const std::size_t peer = (i + 1) % checks_.size();
      DoctorRequest request = to_peer(Kind::kSendOver, peer);
      request.subnet = subnet;
      request.host = network_of(networks[peer], subnet)->address;
      checks_[i]->request(request);
    }
    wait_for_answers(kLinksLimit);
  }
}

void Visit::hang_up() {
  fleet_.hang_up();
  const TimePoint until = Clock::now() + kEndLimit;
  while (!fleet_.all_ended() && Clock::now() < until) wait(until);
  fleet_.kill();
}

}  // namespace

Result<doctor::HealthReport> check_hosts(const DoctorOptions& options,
                                         const Environment& environment) {
  if (const auto failure = unreachable_names(options.hosts)) return *failure;
  if (const auto failure = missing_variable(options.env, environment)) return *failure;
  return Visit(options, environment).run();
}

}  // namespace ddprun::launcher
