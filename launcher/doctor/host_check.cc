#include "launcher/doctor/host_check.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "agent/placement/worker_count.h"
#include "common/assert.h"
#include "common/system/random_id.h"
#include "common/text/figures.h"
#include "launcher/doctor/doctor.h"
#include "launcher/doctor/network.h"
#include "launcher/doctor/versions.h"
#include "launcher/hosts/ssh_node.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/gather_facts.h"

namespace ddprun::launcher {

namespace fact = doctor::fact;

Patient::Patient(const HostEntry& host, const std::string& program, PipedProcess started)
    : ssh_(host, program, std::move(started),
           [this](std::string_view line) { return on_line(line); }) {}

std::string Patient::address() const {
  const std::string seen = facts_.get_or(fact::kMeetAddress, std::string());
  return seen.empty() ? host() : seen;
}

int Patient::workers() const {
  if (ssh_.host.workers) return *ssh_.host.workers;
  return static_cast<int>(facts_.get_or(kWorkers, std::int64_t{1}));
}

void Patient::admit(bool late) {
  if (ssh_.remote.state() == RemoteNode::State::kReady) return;
  if (late && runs()) {
    error_ = host() + " does not answer ssh";
    return kill();
  }
  error_ = ssh_.remote.why();
}

void Patient::order(const Orders& orders) {
  if (!error_.empty()) return;
  ssh_.queue(encode(orders));
  ssh_.remote.ordered(orders.nonce);
}

void Patient::ask(const DoctorRequest& request) {
  if (!is_well()) return;
  ssh_.queue(encode(request));
  ++asked_;
}

bool Patient::on_line(std::string_view line) {
  auto answer = answer_in(line);
  if (!answer) return false;
  --asked_;
  if (*answer)
    facts_.merge(std::move(**answer));
  else
    error_ = host() + " sends damaged " + answer->error().context;
  return true;
}

void Patient::give_up_answers(Milliseconds limit) {
  if (!waits()) return;
  error_ = host() + " did not answer within " + seconds_text(limit);
  kill();
}

void Patient::serve() {
  const bool ran = runs();
  ssh_.serve();
  if (!ran || runs() || !error_.empty() || asked_ == 0) return;
  const auto code = ssh_.remote.exit_code();
  error_ = ssh_.remote.was_lost()
               ? ssh_.remote.why()
               : "ddprun on " + host() + " ended with " + std::to_string(code.value_or(-1));
}

void Patient::kill() {
  if (runs()) ssh_.kill();
}

namespace {

using namespace std::chrono_literals;
namespace fact = doctor::fact;
using doctor::Facts;
using Clock = std::chrono::steady_clock;
using Kind = DoctorRequest::Kind;

constexpr Milliseconds kConnectLimit = 30s;  // As --hosts of a run.
constexpr Milliseconds kFactsLimit = 45s;    // Probes have limits of their own.
constexpr Milliseconds kLinksLimit = 30s;
constexpr Milliseconds kClockLimit = 5s;
constexpr Milliseconds kGoodbyeLimit = 3s;
constexpr int kClockRounds = 5;        // The fastest of them has the least doubt.
constexpr std::size_t kPeersMax = 32;  // That one node connects to.

class Visit {
 public:
  Visit(const DoctorOptions& options, const Environment& environment)
      : options_(options), environment_(environment) {}

  Result<doctor::HealthReport> run();

 private:
  Result<void> start();
  void order();
  void compare_clock(Patient& patient);
  void measure_links();
  void send_round();
  void say_goodbye();
  DoctorRequest to_peer(Kind kind, std::size_t peer) const;
  // Until every patient has answered all it was asked, has ended, or the time is over.
  void wait_for_answers(Milliseconds limit);
  void pump(TimePoint until);

  const DoctorOptions& options_;
  const Environment& environment_;
  const std::string nonce_ = random_hex(8);
  std::vector<std::unique_ptr<Patient>> patients_;
};

Result<doctor::HealthReport> Visit::run() {
  ::signal(SIGPIPE, SIG_IGN);
  if (const auto started = start(); !started) return started.error();
  const TimePoint until = Clock::now() + kConnectLimit;
  const auto connects = [](const auto& patient) { return patient->connects(); };
  while (std::any_of(patients_.begin(), patients_.end(), connects) && Clock::now() < until) {
    pump(until);
  }
  for (const auto& patient : patients_) patient->admit(Clock::now() >= until);
  order();
  for (const auto& patient : patients_) patient->ask({.kind = Kind::kFacts});
  wait_for_answers(kFactsLimit);
  for (const auto& patient : patients_) compare_clock(*patient);
  measure_links();
  say_goodbye();
  doctor::Need need{.several = patients_.size() > 1, .program = options_.program};
  for (const auto& patient : patients_) need.workers = std::max(need.workers, patient->workers());
  std::vector<doctor::NodeFacts> nodes;
  for (const auto& patient : patients_) nodes.push_back(patient->take());
  return doctor::report_of_nodes(nodes, need);
}

Result<void> Visit::start() {
  const launcher::MachineFacts machine = gather_facts(environment_);
  for (const HostEntry& host : options_.hosts) {
    auto process = start_piped(far_end_command(host, options_.ssh, machine));
    if (!process) return process.error();
    patients_.push_back(std::make_unique<Patient>(host, own_program(), std::move(*process)));
  }
  return {};
}

void Visit::order() {
  Options carried;
  carried.env = options_.env;
  Orders orders{.nonce = nonce_,
                .token = {},
                .working_folder = std::filesystem::current_path(),
                .argv = far_end_argv(options_),
                .environment = carried_environment(carried, environment_)};
  for (const auto& patient : patients_) patient->order(orders);
}

void Visit::pump(TimePoint until) {
  std::vector<pollfd> polls;
  for (const auto& patient : patients_) patient->add_polls(polls);
  const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
  ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<long>(left.count(), 0, 1'000)));
  for (const auto& patient : patients_) patient->serve();
}

void Visit::wait_for_answers(Milliseconds limit) {
  const TimePoint until = Clock::now() + limit;
  const auto waits = [](const auto& patient) { return patient->waits(); };
  while (std::any_of(patients_.begin(), patients_.end(), waits) && Clock::now() < until) {
    pump(until);
  }
  for (const auto& patient : patients_) patient->give_up_answers(limit);
}

// Of a few questions the one that was answered fastest says most.
void Visit::compare_clock(Patient& patient) {
  std::optional<double> doubt;
  for (int round = 0; round < kClockRounds && patient.is_well(); ++round) {
    const std::int64_t asked = doctor::wall_ns();
    patient.ask({.kind = Kind::kClock});
    wait_for_answers(kClockLimit);
    const std::int64_t answered = doctor::wall_ns();
    const auto there = patient.facts().get(fact::kWallNs);
    const double half = static_cast<double>(answered - asked) / 2e6;
    if (!there || (doubt && half >= *doubt)) continue;
    doubt = half;
    patient.facts().set(fact::kClockOffsetMs, static_cast<double>(*there - asked) / 1e6 - half);
    patient.facts().set(fact::kClockDoubtMs, half);
  }
}

DoctorRequest Visit::to_peer(Kind kind, std::size_t peer) const {
  const Patient& patient = *patients_[peer];
  const auto port = patient.facts().get(fact::kListening);
  return {.kind = kind,
          .name = patient.host(),
          .host = patient.address(),
          .port = static_cast<std::uint16_t>(port.value_or(0)),
          .nonce = nonce_};
}

void Visit::measure_links() {
  if (patients_.size() < 2) return;
  const std::uint16_t port = options_.port.value_or(random_meeting_port());
  for (std::size_t i = 0; i < patients_.size(); ++i) {
    const auto endpoint = static_cast<std::uint16_t>(i == 0 ? port : 0);
    patients_[i]->ask({.kind = Kind::kListen, .port = endpoint, .nonce = nonce_});
  }
  wait_for_answers(kLinksLimit);
  for (const auto& patient : patients_) {
    patient->ask(
        {.kind = Kind::kMeet, .host = patients_.front()->host(), .port = port, .nonce = nonce_});
  }
  wait_for_answers(kLinksLimit);
  const std::size_t peers = std::min(patients_.size() - 1, kPeersMax);
  for (std::size_t i = 0; i < patients_.size(); ++i) {
    for (std::size_t step = 1; step <= peers; ++step) {
      const std::size_t peer = (i + step) % patients_.size();
      if (patients_[peer]->is_well()) patients_[i]->ask(to_peer(Kind::kReach, peer));
    }
  }
  wait_for_answers(kLinksLimit);
  send_round();
}

// Each node sends to the next one, all at once: a link is measured in both directions.
void Visit::send_round() {
  for (std::size_t i = 0; i < patients_.size(); ++i) {
    const std::size_t peer = (i + 1) % patients_.size();
    if (patients_[peer]->is_well()) patients_[i]->ask(to_peer(Kind::kSend, peer));
  }
  wait_for_answers(kLinksLimit);
}

void Visit::say_goodbye() {
  for (const auto& patient : patients_) patient->hang_up();
  const TimePoint until = Clock::now() + kGoodbyeLimit;
  const auto runs = [](const auto& patient) { return patient->runs(); };
  while (std::any_of(patients_.begin(), patients_.end(), runs) && Clock::now() < until) pump(until);
  for (const auto& patient : patients_) patient->kill();
}

}  // namespace

Result<doctor::HealthReport> check_hosts(const DoctorOptions& options,
                                         const Environment& environment) {
  if (const auto failure = unreachable_names(options.hosts)) return *failure;
  if (const auto failure = missing_variable(options.env, environment)) return *failure;
  return Visit(options, environment).run();
}

}  // namespace ddprun::launcher
