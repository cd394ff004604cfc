#include "launcher/checkup/doctor.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/screen.h"
#include "launcher/checkup/doctor_hosts.h"
#include "launcher/checkup/far_end.h"
#include "launcher/checkup/workers.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/screen.h"
#include "launcher/plan/plan.h"
#include "launcher/probe/probe.h"

namespace ddprun::launcher {
namespace {

constexpr int kCouldNotTell = 3;

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

int couldnt(const Failure& failure) {
  log::error(failure.context.empty() ? to_string(failure) : failure.context);
  return kCouldNotTell;
}

doctor::HealthReport check_here(const DoctorOptions& options) {
  doctor::NodeFacts node;
  const std::uint16_t port = options.port.value_or(kEndpointPort);
  node.facts = doctor::gather_facts_of_node(doctor::Depth::kFull,
                                            {.program = options.program, .port = port});
  node.host = node.facts.get_or(doctor::fact::kHost, std::string("here"));
  const doctor::Need need{.workers = workers_of(options.workers, node.facts),
                          .program = options.program};
  return doctor::report_of_node(node, need);
}

}  // namespace

int run_doctor(int argc, const char* const* argv, const Environment& environment,
               ControlStdin* control) {
  auto outcome = parse_doctor(argc, argv);
  if (!outcome) return couldnt(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return after_output(0, kCouldNotTell);
  }
  const auto& options = std::get<DoctorOptions>(*outcome);
  if (options.far_end) return control ? serve_far_end(options, *control) : kCouldNotTell;
  const auto began = std::chrono::steady_clock::now();
  Result<doctor::HealthReport> report = options.hosts.empty()
                                            ? Result<doctor::HealthReport>(check_here(options))
                                            : check_hosts(options, environment);
  if (!report) return couldnt(report.error());
  const auto took = std::chrono::steady_clock::now() - began;
  report->took_ms = std::chrono::duration<double, std::milli>(took).count();
  const std::string text = options.json ? doctor::report_json(*report) + "\n"
                                        : doctor::screen(*report, style_of(options, environment));
  write_output(text);
  return after_output(doctor::exit_code_of(doctor::worst_of(*report)), kCouldNotTell);
}

}  // namespace ddprun::launcher
