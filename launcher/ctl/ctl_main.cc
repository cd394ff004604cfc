// ddprunctl: an operator's command to query a rendezvous daemon about its runs, or to end them.

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_query.h"
#include "launcher/ctl/ctl_text.h"
#include "launcher/ctl/ras_query.h"
#include "launcher/ctl/ras_report.h"
#include "launcher/options/option_values.h"
#include "launcher/watch/debug.h"
#include "launcher/watch/kept.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/stacks.h"
#include "launcher/watch/terminal.h"
#include "launcher/watch/top.h"
#include "launcher/watch/window_client.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {
namespace {

using rendezvous::Command;
using Verb = CtlOptions::Verb;

Environment own_environment() {
  Environment environment;
  if (auto token = take_variable(kTokenVariable)) environment.emplace(kTokenVariable, *token);
  for (const char* name : {"PET_RDZV_ENDPOINT", "DDPRUN_ENDPOINT", "DDPRUN_TOKEN_FILE"}) {
    if (const char* value = std::getenv(name)) environment.emplace(name, value);
  }
  return environment;
}

Result<std::string> read_token(const CtlOptions& options, const Environment& environment) {
  if (!options.authenticated) return std::string();
  hide_memory();
  if (!options.token_file) return environment.find(kTokenVariable)->second;
  return secret_in_file(*options.token_file, "token");
}

// "alice@head", as a contact for users if their run is ended.
std::string requester() {
  const passwd* user = ::getpwuid(::geteuid());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return (user ? std::string(user->pw_name) : std::to_string(::geteuid())) + "@" + host.data();
}

Command command_of(const CtlOptions& options) {
  Command command{.run_id = options.run_id,
                  .node = options.node,
                  .nodes = options.nodes,
                  .force = options.force};
  const std::string because = options.reason.empty() ? "" : ": " + options.reason;
  if (options.verb == Verb::kDrain) {
    command.verb = Command::Verb::kDrain;
    command.reason = "drained by " + requester() + because;
  } else if (options.verb == Verb::kCancel) {
    command.verb = Command::Verb::kCancel;
    command.reason = "cancelled by " + requester() + because;
  } else if (options.verb == Verb::kResize) {
    command.verb = Command::Verb::kResize;
    command.reason = "requested by " + requester() + because;
  } else if (options.verb == Verb::kReport || options.verb == Verb::kWhatIf) {
    command.verb = Command::Verb::kReport;
  } else if (options.verb == Verb::kHistory) {
    command.verb = Command::Verb::kHistory;
  } else if (options.verb == Verb::kTop) {
    command.verb = Command::Verb::kWatch;
  }
  return command;
}

Result<std::string> shown(const CtlOptions& options, const std::string& answer) {
  using enum CtlOptions::Verb;
  const bool is_sentence =
      options.verb == kDrain || options.verb == kCancel || options.verb == kResize;
  if (is_sentence) return plain_line(answer) + "\n";
  if (options.verb == Verb::kReport) return report_shown(options, answer);
  if (options.verb == Verb::kWhatIf) return whatif_shown(options, answer);
  if (options.verb == Verb::kHistory) return daemon_history_shown(options, answer);
  const auto status = rendezvous::decode_status(answer);
  if (!status) return status.error();
  if (options.json) return rendezvous::encode_indented(*status);
  const ScreenStyle style = output_style();
  if (options.verb == Verb::kNodes) return nodes_text(*status, style);
  if (!options.run_id.empty() && status->runs.size() == 1) {
    return run_text(status->runs.front(), style);
  }
  return runs_text(*status, style);
}

Result<std::string> ras_shown(const CtlOptions& options, const Endpoint& at) {
  const auto answer = query_ras(at, options.ras_limit);
  if (!answer) return answer.error();
  if (!answer->is_json && options.json) {
    return Failure{Errc::kNotFound,
                   "the NCCL at " + to_string(at) + " has no JSON; 2.28.7 and later have"};
  }
  if (!answer->is_json) return answer->text;  // Text for the user, unchanged.
  const auto report = decode_ras(answer->text);
  if (!report) return report.error();
  return options.json ? repaired(answer->text) : ras_text(*report);
}

// NCCL's report about the run's workers on this machine; empty if there are none, or none that use
// NCCL.
std::string ras_beside_status(const CtlOptions& options) {
  if (options.verb != Verb::kStatus || options.run_id.empty() || options.json) return {};
  std::string text;
  for (const RasJob& job : ras_jobs(options.run_id)) {
    const auto at = parse_endpoint(job.address);
    if (!at || !at->port) continue;
    const auto shown = ras_shown(options, *at);
    if (!shown && shown.error().code == std::errc::connection_refused) continue;
    text += "\nNCCL at " + job.address + ": " + (shown ? *shown : shown.error().context + "\n");
  }
  return text;
}

// Each job of this machine, or the one that was named.
Result<std::string> all_ras_shown(const CtlOptions& options) {
  if (options.ras) return ras_shown(options, *options.ras);
  const auto jobs = ras_jobs(options.run_id);
  if (jobs.empty()) {
    const std::string which = options.run_id.empty() ? "a run" : "the run " + options.run_id;
    return Failure{Errc::kNotFound,
                   "no process on this machine that you may inspect is a worker "
                   "of " +
                       which + "; --address HOST:PORT queries another one"};
  }
  std::string text;
  for (const RasJob& job : jobs) {
    const auto at = parse_endpoint(job.address);
    if (!at || !at->port) {
      return Failure{Errc::kBadOption, "NCCL_RAS_ADDR=" + job.address + " is no HOST:PORT"};
    }
    const auto shown = ras_shown(options, *at);
    if (!shown && jobs.size() == 1) return shown.error();
    if (options.json) {
      if (!shown) log::error(shown.error().context);
      if (shown) text += *shown;
      continue;
    }
    text += "run " + job.run_id + " at " + job.address + ": ";
    text += shown ? *shown : shown.error().context + "\n";
  }
  return text;
}

int fail(const Failure& failure) {
  log::error(failure.context);
  return failure.code == Errc::kBadOption ? kExitUsage : kExitFailed;
}

Result<void> show_top(const CtlOptions& options, const StatusSource& source) {
  return run_top({.once = options.once, .json = options.json, .interval = options.interval},
                 source);
}

Result<void> show_own_top(const CtlOptions& options) {
  return show_top(options, runs_of_this_machine(options.run_id));
}

Result<void> show_ras(const CtlOptions& options) {
  const auto text = all_ras_shown(options);
  if (!text) return text.error();
  write_output(*text);
  return {};
}

Result<void> show_logs(const CtlOptions& options) {
  return print_logs(
      {.run = options.run_id, .rank = options.rank.value_or(-1), .follow = options.follow});
}

Result<void> show_capture(const CtlOptions& options) {
  const auto text = request_capture(options.run_id);
  if (!text) return text.error();
  write_output(*text);
  return {};
}

Result<void> show_stacks(const CtlOptions& options) {
  return print_stacks(options.run_id, *options.rank);
}

Result<void> show_debug(const CtlOptions& options) {
  return print_debug({.run = options.run_id,
                      .rank = *options.rank,
                      .handler = options.handler,
                      .limit = options.debug_limit});
}

Result<void> show_health(const CtlOptions& options) {
  const auto text = health_of_this_machine(options.run_id);
  if (!text) return text.error();
  write_output(*text);
  return {};
}

Result<void> show_preload(const CtlOptions& options) {
  const auto text = options.end.empty() ? kept_here(output_style()) : end_kept(options.end);
  if (!text) return text.error();
  write_output(*text);
  return {};
}

// Verbs that need no daemon.
struct OwnVerb {
  Verb verb;
  Result<void> (*show)(const CtlOptions&);
};
constexpr OwnVerb kOwnVerbs[] = {
    {Verb::kRas, show_ras},           {Verb::kTop, show_own_top},
    {Verb::kLogs, show_logs},         {Verb::kStacks, show_stacks},
    {Verb::kDebug, show_debug},       {Verb::kHealth, show_health},
    {Verb::kReport, show_own_report}, {Verb::kHistory, show_own_history},
    {Verb::kWhatIf, show_own_whatif}, {Verb::kCapture, show_capture},
    {Verb::kPreload, show_preload}};

Result<void> query_daemon(const CtlOptions& options, const Environment& environment) {
  const auto token = read_token(options, environment);
  if (!token) return token.error();
  if (options.verb == Verb::kTop) {
    return show_top(options, [&](boost::asio::io_context& io, const OnStatus& handler) {
      return async_query(io, options.endpoint, *token, command_of(options),
                         [handler](Result<std::string> answer) {
                           if (!answer) return handler(answer.error());
                           handler(rendezvous::decode_status(*answer));
                         });
    });
  }
  const auto answer = query(options.endpoint, *token, command_of(options));
  if (!answer) return answer.error();
  const auto text = shown(options, *answer);
  if (!text) return text.error();
  write_output(*text);
  write_output(ras_beside_status(options));
  return {};
}

Result<void> carry_out(const CtlOptions& options, const Environment& environment) {
  if (options.queries_daemon && options.own_first) {
    const bool is_report = options.verb == Verb::kReport;
    DDPRUN_ASSERT(is_report || options.verb == Verb::kWhatIf);
    const auto own = is_report ? show_own_report(options) : show_own_whatif(options);
    if (own || own.error().code != Errc::kNotFound) return own;
    const auto answered = query_daemon(options, environment);
    if (answered) return answered;
    return Failure{Errc::kNotFound, own.error().context + "; and " + answered.error().context};
  }
  if (options.queries_daemon) return query_daemon(options, environment);
  for (const OwnVerb& own : kOwnVerbs) {
    if (own.verb == options.verb) return own.show(options);
  }
  DDPRUN_ASSERT(!"a verb of its own");
  return {};
}

int run(int argc, char** argv) {
  log::start("ddprunctl", log::Level::kInfo);
  ::signal(SIGPIPE, SIG_IGN);
  const Environment environment = own_environment();
  const auto outcome = parse_ctl(argc, argv, environment);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return kExitOk;
  }
  const auto done = carry_out(std::get<CtlOptions>(*outcome), environment);
  return done ? kExitOk : fail(done.error());
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  ddprun::occupy_standard_descriptors();
  try {
    return ddprun::after_output(ddprun::launcher::run(argc, argv));
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "ddprunctl: error: %s\n", bug.what());
    return ddprun::kExitFailed;
  }
}
