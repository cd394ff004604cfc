#pragma once
// `doctor --hosts`: a far end on each host by ssh, their facts, and what is measured between them.

#include <poll.h>

#include <string>
#include <vector>

#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/health_report.h"
#include "launcher/hosts/orders.h"
#include "launcher/hosts/ssh_node.h"

namespace ddprun::launcher {

// One host of `doctor --hosts`: its far end, what was asked of it, and the facts that came back.
// Does not wait. Used by doctor_hosts.cc.
class Patient {
 public:
  Patient(const HostEntry& host, const std::string& program, PipedProcess started);

  const std::string& host() const { return ssh_.host.name; }
  // Where other nodes reach it: as the endpoint saw it, else its name.
  std::string address() const;
  int workers() const;

  bool connects() const { return ssh_.remote.state() == RemoteNode::State::kConnecting; }
  bool runs() const { return ssh_.remote.state() != RemoteNode::State::kEnded; }
  bool is_well() const { return error_.empty() && runs(); }
  bool waits() const { return is_well() && asked_ > 0; }

  // Once everybody has had the time to connect: who has not is an error. `late`: that time is over.
  void admit(bool late);
  void order(const Orders& orders);
  void ask(const DoctorRequest& request);  // Nothing is asked of one that is not well.
  void give_up_answers(Milliseconds limit);

  void add_polls(std::vector<pollfd>& polls) const { ssh_.add_polls(polls); }
  void serve();
  void hang_up() { ssh_.hang_up(); }
  void kill();

  doctor::Facts& facts() { return facts_; }
  const doctor::Facts& facts() const { return facts_; }
  doctor::NodeFacts take() { return {host(), std::move(facts_), error_}; }

 private:
  bool on_line(std::string_view line);

  doctor::Facts facts_;
  std::string error_;  // Why nothing more will come, as a sentence.
  int asked_ = 0;      // Without the answers that have come.
  SshNode ssh_;
};

// A failure is a whole sentence. A host that cannot be reached is a finding, not a failure.
Result<doctor::HealthReport> check_hosts(const DoctorOptions& options,
                                         const Environment& environment);

}  // namespace ddprun::launcher
