#include "launcher/checkup/patient.h"

#include "common/text/figures.h"
#include "launcher/doctor/fact_names.h"

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
  return static_cast<int>(facts_.get_or(fact::kWorkers, std::int64_t{1}));
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

}  // namespace ddprun::launcher
