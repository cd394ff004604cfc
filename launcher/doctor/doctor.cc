#include "launcher/doctor/doctor.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "agent/placement/worker_count.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "launcher/doctor/health_report.h"
#include "launcher/doctor/host_check.h"
#include "launcher/doctor/network.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/doctor/probes.h"
#include "launcher/doctor/subject.h"
#include "launcher/doctor/versions.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
namespace fact = doctor::fact;
using doctor::Facts;
using Kind = DoctorRequest::Kind;

// How many workers a node would get, by its facts: the probe counts GPUs within its deadline.
int workers_of(const WorkerCount& wanted, const doctor::Facts& facts) {
  agent::PlacementFacts placement;
  placement.cpus = agent::usable_processors();
  placement.gpus = static_cast<int>(facts.list(doctor::fact::kGpus).size());
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible) placement.cuda_visible_devices = visible;
  const auto workers = agent::workers_per_node(to_string(wanted), placement);
  return workers ? *workers : 1;
}

// The far end of `doctor --hosts`: gathers the facts of its node, then measures what the requests
// name, until its input ends. Each answer is one line of facts. Requests are frames, like the
// signals of a run; node_facts.h lists them.

class FarEnd {
 public:
  explicit FarEnd(const DoctorOptions& options) : options_(options) {}

  Facts answer(const DoctorRequest& request) {
    const doctor::Address address{request.host, request.port};
    const std::string& nonce = request.nonce;
    switch (request.kind) {
      case Kind::kFacts: return all_facts();
      case Kind::kListen: return doctor::serve_links(request.port, nonce, servers_);
      case Kind::kMeet: return doctor::meet(address, nonce);
      case Kind::kReach: return doctor::link_to(request.name, address, nonce, {.limit = 3s});
      case Kind::kSend:
        return doctor::link_to(request.name, address, nonce, {.limit = 6s, .send_for = 300ms});
      case Kind::kSendOver:
        return doctor::link_to(request.name, address, nonce, {.limit = 3s, .send_for = 300ms},
                               request.subnet);
      case Kind::kClock: break;
    }
    Facts facts;
    facts.set(fact::kWallNs, doctor::wall_ns());
    return facts;
  }

 private:
  Facts all_facts() const {
    Facts facts = doctor::gather_facts_of_node(
        doctor::Depth::kFull,
        {.program = options_.program, .memory_at = options_.memory_folder.at});
    facts.set(kWorkers, std::int64_t{workers_of(options_.workers, facts)});
    return facts;
  }

  const DoctorOptions& options_;
  std::vector<doctor::LinkServer> servers_;
};

int serve_far_end(const DoctorOptions& options, ControlStdin& control) {
  FarEnd far_end(options);
  for (;;) {
    const auto frame = control.next();
    if (!frame) return 0;
    const auto request = decode_request(*frame);
    if (!request) continue;  // A signal. Only the end of the input ends a far end.
    const std::string answer = std::string(kAnswer) + encode(far_end.answer(*request)) + "\n";
    if (!write_all(STDOUT_FILENO, answer)) return 0;
  }
}

constexpr int kNotMeasured = 3;

// The width of a terminal; 0: it is none.
int terminal_width() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 80;
}

doctor::Style style_of(const DoctorOptions& options, const Environment& environment) {
  doctor::Style style;
  style.width = terminal_width();
  style.verbose = options.verbose;
  const bool dumb = value_of(environment, "TERM") == "dumb";
  const bool forced = value_of(environment, "CLICOLOR_FORCE") == "1";
  const bool plain =
      dumb || !value_of(environment, "NO_COLOR").empty() || !value_of(environment, "CI").empty();
  style.colours = options.colour == Colour::kAlways ||
                  (options.colour == Colour::kAuto && (forced || (style.width > 0 && !plain)));
  const auto variable = [&](const char* name) { return value_of(environment, name); };
  style.utf8 = !options.ascii && !dumb && is_utf8_locale(variable);
  return style;
}

int failed(const Failure& failure) {
  log::error(failure.context.empty() ? to_string(failure) : failure.context);
  return kNotMeasured;
}

doctor::HealthReport check_here(const DoctorOptions& options) {
  doctor::NodeFacts node;
  const std::uint16_t port = options.port.value_or(kEndpointPort);
  node.facts = doctor::gather_facts_of_node(
      doctor::Depth::kFull,
      {.program = options.program, .port = port, .memory_at = options.memory_folder.at});
  node.host = node.facts.get_or(fact::kHost, std::string("here"));
  const doctor::Need need{.workers = workers_of(options.workers, node.facts),
                          .program = options.program,
                          .memory_folder = static_cast<std::int64_t>(options.memory_folder.bytes)};
  return doctor::report_of_node(node, need);
}

}  // namespace

int run_doctor(int argc, const char* const* argv, const Environment& environment,
               ControlStdin* control) {
  auto outcome = parse_doctor(argc, argv);
  if (!outcome) return failed(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return after_output(0, kNotMeasured);
  }
  const auto& options = std::get<DoctorOptions>(*outcome);
  if (options.far_end) return control ? serve_far_end(options, *control) : kNotMeasured;
  const auto began = std::chrono::steady_clock::now();
  Result<doctor::HealthReport> report = options.hosts.empty()
                                            ? Result<doctor::HealthReport>(check_here(options))
                                            : check_hosts(options, environment);
  if (!report) return failed(report.error());
  const auto took = std::chrono::steady_clock::now() - began;
  report->took_ms = std::chrono::duration<double, std::milli>(took).count();
  const std::string text = options.json ? doctor::report_json(*report) + "\n"
                                        : doctor::screen(*report, style_of(options, environment));
  write_output(text);
  return after_output(doctor::exit_code_of(doctor::worst_of(*report)), kNotMeasured);
}

}  // namespace ddprun::launcher
