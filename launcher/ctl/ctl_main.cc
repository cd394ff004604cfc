// ddprunctl: what an operator types to ask a rendezvous daemon about its runs, or to end them.

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "launcher/ctl/ctl_ask.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_text.h"
#include "launcher/ctl/ras_ask.h"
#include "launcher/ctl/ras_report.h"
#include "launcher/options/option_values.h"
#include "launcher/page/report_page.h"
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

// "alice@head", so that those whose run ends know whom to ask.
std::string who_asks() {
  const passwd* user = ::getpwuid(::geteuid());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return (user ? std::string(user->pw_name) : std::to_string(::geteuid())) + "@" + host.data();
}

Command command_of(const CtlOptions& options) {
  Command command{.run_id = options.run_id, .node = options.node, .nodes = options.nodes};
  const std::string because = options.reason.empty() ? "" : ": " + options.reason;
  if (options.verb == Verb::kDrain) {
    command.verb = Command::Verb::kDrain;
    command.reason = "drained by " + who_asks() + because;
  } else if (options.verb == Verb::kCancel) {
    command.verb = Command::Verb::kCancel;
    command.reason = "cancelled by " + who_asks() + because;
  } else if (options.verb == Verb::kResize) {
    command.verb = Command::Verb::kResize;
    command.reason = "asked for by " + who_asks() + because;
  } else if (options.verb == Verb::kReport) {
    command.verb = Command::Verb::kReport;
  }
  return command;
}

Result<std::string> report_shown(const CtlOptions& options, const std::string& account) {
  if (options.html_file.empty()) return account + "\n";
  const auto page = report_page(account, {});
  if (!page) return Failure{Errc::kBadMessage, "the daemon's account cannot be read"};
  std::ofstream file(options.html_file, std::ios::trunc);
  file << *page << std::flush;
  if (!file) return errno_failure("writing " + options.html_file);
  return "the report is in " + options.html_file + "\n";
}

Result<std::string> shown(const CtlOptions& options, const std::string& answer) {
  using enum CtlOptions::Verb;
  const bool is_sentence =
      options.verb == kDrain || options.verb == kCancel || options.verb == kResize;
  if (is_sentence) return answer + "\n";
  if (options.verb == Verb::kReport) return report_shown(options, answer);
  const auto status = rendezvous::decode_status(answer);
  if (!status) return status.error();
  if (options.json) return rendezvous::encode_indented(*status);
  if (options.verb == Verb::kNodes) return nodes_text(*status);
  if (!options.run_id.empty() && status->runs.size() == 1) return run_text(status->runs.front());
  return runs_text(*status);
}

Result<std::string> ras_shown(const CtlOptions& options, const Endpoint& at) {
  const auto answer = ask_ras(at, options.ras_limit);
  if (!answer) return answer.error();
  if (!answer->is_json && options.json) {
    return Failure{Errc::kNotFound,
                   "the NCCL at " + to_string(at) + " has no JSON; 2.28.7 and later have"};
  }
  if (!answer->is_json) return answer->text;  // For people as it is.
  const auto report = decode_ras(answer->text);
  if (!report) return report.error();
  return options.json ? repaired(answer->text) : ras_text(*report);
}

// What NCCL says of the run's workers on this machine; nothing where there are none, or none that
// use NCCL.
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
                       which + "; --address HOST:PORT asks another place"};
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

int run(int argc, char** argv) {
  log::start("ddprunctl", log::Level::kInfo);
  ::signal(SIGPIPE, SIG_IGN);
  const Environment environment = own_environment();
  const auto outcome = parse_ctl(argc, argv, environment);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    std::fputs(print->text.c_str(), stdout);
    return kExitOk;
  }
  const auto& options = std::get<CtlOptions>(*outcome);
  if (options.verb == Verb::kRas) {
    const auto text = all_ras_shown(options);
    if (!text) return fail(text.error());
    std::fputs(text->c_str(), stdout);
    return kExitOk;
  }
  const auto token = read_token(options, environment);
  if (!token) return fail(token.error());
  const auto answer = ask(options.endpoint, *token, command_of(options));
  if (!answer) return fail(answer.error());
  const auto text = shown(options, *answer);
  if (!text) return fail(text.error());
  std::fputs(text->c_str(), stdout);
  std::fflush(stdout);  // NCCL may take a while.
  std::fputs(ras_beside_status(options).c_str(), stdout);
  return kExitOk;
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  try {
    return ddprun::launcher::run(argc, argv);
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "ddprunctl: error: %s\n", bug.what());
    return ddprun::kExitFailed;
  }
}
