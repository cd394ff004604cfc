#include "launcher/ctl/ctl_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "common/text/display.h"
#include "launcher/ctl/ctl_completion.h"
#include "launcher/options/option_values.h"
#include "launcher/watch/debug.h"

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "0.0.0"
#endif

namespace ddprun::launcher {
namespace {

constexpr std::uint16_t kDaemonPort = 29'400;

struct Texts {
  std::string completion;  // The shell of the requested script.
  std::string endpoint;
  std::string token_file;
  std::string ras;
  double ras_seconds = 20;
  double debug_seconds = 60;
  bool no_auth = false;
  double interval_seconds = 2;
};

using enum CtlOptions::Verb;

// Adds a verb; if the command line contains it, it is the chosen one.
class AddVerb {
 public:
  AddVerb(CLI::App& app, CtlOptions& options) : app_(app), options_(options) {}

  CLI::App* operator()(const char* name, const char* help, CtlOptions::Verb verb) const {
    CLI::App* added = app_.add_subcommand(name, help);
    added->callback([&options = options_, verb] { options.verb = verb; });
    return added;
  }

 private:
  CLI::App& app_;
  CtlOptions& options_;
};

// The verbs for this machine's runs.
void declare_watching(const AddVerb& add, CtlOptions& o, Texts& texts) {
  auto* top = add("top", "Runs in progress: steps, late ranks, where the time goes", kTop);
  top->add_option("--run", o.run_id, "This run only");
  top->add_flag("--once", o.once, "Print once, as into a pipe");
  top->add_flag("--json", o.json, "Once, as JSON; docs/operations.md has its fields");
  top->add_option("--interval", texts.interval_seconds, "Seconds between two updates [2]");
  auto* logs = add("logs", "What workers on this machine wrote last", kLogs);
  logs->add_option("run", o.run_id, "The run's id, or its number in the history [the last]");
  logs->add_option("rank", o.rank, "This rank only");
  logs->add_flag("-f,--follow", o.follow, "Continue until the run ends");
  auto* stacks =
      add("stacks", "Where a worker on this machine is: the stacks of its threads", kStacks);
  stacks->add_option("run", o.run_id, "The run's id, or its number in the history")->required();
  stacks->add_option("rank", o.rank, "The rank")->required();
  auto* debug = add("debug", "Answers of PyTorch's own debug handlers in a worker here", kDebug);
  debug->add_option("run", o.run_id, "The run's id, or its number in the history")->required();
  debug->add_option("rank", o.rank, "The rank")->required();
  debug->add_option("handler", o.handler, "NAME or 'NAME?KEY=VALUE' [lists the names]");
  debug->add_option("--timeout", texts.debug_seconds, "Seconds to wait for the answer [60]");
  auto* history = add("history", "The last runs on this machine, or of a daemon (-e)", kHistory);
  history->add_option("run", o.run_id, "The run's id, or its number in the list");
  history->add_flag("--json", o.json, "As JSON; docs/operations.md has its fields");
}

// Flags before any verb.
void declare_common(CLI::App& app, Texts& texts) {
  app.description("Shows and controls the runs of a ddprun-rendezvous daemon.");
  app.footer(kCtlHelp);
  app.set_version_flag("--version", "ddprunctl " DDPRUN_VERSION);
  app.fallthrough();
  app.add_option("-e,--rdzv-endpoint,--rdzv_endpoint", texts.endpoint,
                 "HOST[:PORT] of the daemon [127.0.0.1:29400]");
  auto* token_file = app.add_option("--token-file,--token_file", texts.token_file,
                                    "File whose first line is the daemon's token");
  app.add_option("--print-completion,--print_completion", texts.completion,
                 "Prints a completion script for bash, zsh or tcsh");
  app.add_flag("--no-auth,--no_auth", texts.no_auth, "The daemon was started with --no-auth")
      ->excludes(token_file);
}

// The verbs that show what a daemon has.
void declare_status(const AddVerb& add, CtlOptions& o) {
  auto* status = add("status", "All runs, or one run with all its nodes", kStatus);
  auto* nodes = add("nodes", "The nodes of all runs, or of one", kNodes);
  for (CLI::App* verb : {status, nodes}) {
    verb->add_option("--run", o.run_id, "This run only");
    verb->add_flag("--json", o.json, "As JSON; docs/operations.md has its fields");
  }
}

// The verbs that change a run.
void declare_orders(const AddVerb& add, CtlOptions& o) {
  auto* drain = add("drain", "Removes a node; its run continues without it", kDrain);
  drain->add_option("node", o.node, "The node's id, or the name of its host")->required();
  drain->add_option("--run", o.run_id, "The node's run, if that is ambiguous");
  drain->add_flag("--force", o.force, "Even if only this node has the state of an elastic job");
  auto* cancel = add("cancel", "Ends a run on all its nodes", kCancel);
  cancel->add_option("run", o.run_id, "The run's id")->required();
  auto* resize = add("resize", "Sets the number of nodes of a run", kResize);
  resize->add_option("run", o.run_id, "The run's id")->required();
  resize->add_option("nodes", o.nodes, "Between MIN and MAX of its --nnodes")->required();
  for (CLI::App* verb : {drain, cancel, resize}) {
    verb->add_option("--reason", o.reason, "The reason, for the nodes and the verdict");
  }
}

// The verbs that explain a run.
void declare_reports(const AddVerb& add, CtlOptions& o, Texts& texts) {
  auto* report = add("report", "Where a run's time went: JSON, or a page", kReport);
  report->add_option("run", o.run_id, "The run's id, or its number in the history")->required();
  report->add_option("--html", o.html_file, "Write a page to this file");
  auto* ras = add("ras", "Missing ranks and differing counts, as NCCL reports them", kRas);
  ras->add_option("--run", o.run_id, "This run only");
  ras->add_option("--address", texts.ras,
                  "HOST:PORT of NCCL_RAS_ADDR [that of the workers on this machine]");
  ras->add_option("--timeout", texts.ras_seconds, "Seconds to wait for a job's answer [20]");
  ras->add_flag("--json", o.json, "As NCCL's own JSON (2.28.7 and later)");
}

void declare(CLI::App& app, CtlOptions& o, Texts& texts) {
  declare_common(app, texts);
  const AddVerb add(app, o);
  declare_status(add, o);
  declare_orders(add, o);
  declare_reports(add, o, texts);
  declare_watching(add, o, texts);
}

// "status, nodes or drain".
std::string verbs_of(const CLI::App& app) {
  std::string text;
  const auto verbs = app.get_subcommands({});
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == verbs.size() ? " or " : ", ") + verbs[i]->get_name();
  }
  return text;
}

// In our own terms instead of CLI11's, which are a library's.
Failure misuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::string see = "; see ddprunctl --help";
  const auto chosen = app.get_subcommands();
  const auto extra = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && !extra.empty()) {
    const bool verb = chosen.empty() && !extra.front().starts_with('-');
    if (verb) return usage("unknown command '" + extra.front() + "': give " + verbs_of(app) + see);
    return usage("unknown argument '" + extra.front() + "'" + see);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) && !chosen.empty()) {
    std::string name = error.what();
    name = name.substr(0, name.find(' '));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    return usage(chosen.front()->get_name() + " needs " + name + see);
  }
  // "Could not convert: nodes = x".
  const std::string text = error.what();
  const std::size_t name = text.find(": "), value = text.find(" = ");
  if (dynamic_cast<const CLI::ConversionError*>(&error) && name < value && value != text.npos) {
    return usage(plain_line(text.substr(name + 2, value - name - 2)) + " '" +
                 plain_line(text.substr(value + 3)) + "': give a number" + see);
  }
  return usage(plain_line(text) + see);
}

std::vector<std::string> dashed_flags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name.find('_') == std::string::npos) flags.push_back("--" + name);
    }
  }
  return flags;
}

Result<CtlOutcome> completion(const CLI::App& app, const std::string& shell) {
  if (shell != "bash" && shell != "zsh" && shell != "tcsh") {
    return usage("--print-completion '" + shell + "': give bash, zsh or tcsh");
  }
  std::vector<CtlVerb> verbs = {{"", dashed_flags(app)}};
  for (const CLI::App* verb : app.get_subcommands({})) {
    verbs.push_back({verb->get_name(), dashed_flags(*verb)});
  }
  return CtlOutcome(PrintAndExit{ctl_completion_script(shell, verbs)});
}

std::optional<Failure> read_timeout(double seconds, Milliseconds& limit) {
  constexpr double kSecondsMax = 3600;
  if (!(seconds > 0 && seconds <= kSecondsMax)) {
    return usage("--timeout is a number of seconds above 0, up to 3600");
  }
  limit = Milliseconds(static_cast<std::int64_t>(seconds * 1000) + 1);
  return std::nullopt;
}

std::optional<Failure> resolve_ras(const Texts& texts, CtlOptions& options) {
  if (const auto failure = read_timeout(texts.ras_seconds, options.ras_limit)) return failure;
  if (texts.ras.empty()) return std::nullopt;
  const auto parsed = parse_endpoint(texts.ras);
  if (!parsed) return usage("--address '" + texts.ras + "': " + parsed.error().context);
  if (!parsed->port) return usage("--address '" + texts.ras + "' has no port");
  options.ras = *parsed;
  return std::nullopt;
}

std::string given_endpoint(const Texts& texts, const Environment& environment) {
  if (!texts.endpoint.empty()) return texts.endpoint;
  const std::string endpoint = value_of(environment, "PET_RDZV_ENDPOINT");
  return endpoint.empty() ? value_of(environment, "DDPRUN_ENDPOINT") : endpoint;
}

std::optional<Failure> resolve_watching(const Texts& texts, CtlOptions& options) {
  constexpr double kLeast = 0.1, kMost = 3600;
  if (!(texts.interval_seconds >= kLeast && texts.interval_seconds <= kMost)) {
    return usage("--interval is a number of seconds from 0.1 to 3600");
  }
  options.interval = Milliseconds(static_cast<std::int64_t>(texts.interval_seconds * 1000));
  if (options.rank && *options.rank < 0) return usage("a rank is a number from 0");
  if (!is_handler(options.handler)) {
    return usage("'" + options.handler +
                 "' is no handler: give NAME or NAME?KEY=VALUE, as in a URL");
  }
  if (const auto failure = read_timeout(texts.debug_seconds, options.debug_limit)) return failure;
  return std::nullopt;
}

std::optional<Failure> resolve(const Texts& texts, const Environment& environment,
                               CtlOptions& options) {
  std::string endpoint = given_endpoint(texts, environment);
  if (endpoint.empty()) endpoint = "127.0.0.1";
  const auto parsed = parse_endpoint(endpoint);
  if (!parsed) return usage("--rdzv-endpoint '" + endpoint + "': " + parsed.error().context);
  options.endpoint = *parsed;
  if (!options.endpoint.port) options.endpoint.port = kDaemonPort;

  options.authenticated = !texts.no_auth;
  if (texts.no_auth) return std::nullopt;
  if (!texts.token_file.empty()) {
    options.token_file = texts.token_file;
  } else if (value_of(environment, "DDPRUN_TOKEN").empty()) {
    options.token_file = value_of(environment, "DDPRUN_TOKEN_FILE");
    if (options.token_file->empty()) {
      return usage("the daemon's token is needed: --token-file FILE or DDPRUN_TOKEN, or --no-auth");
    }
  }
  return std::nullopt;
}

}  // namespace

Result<CtlOutcome> parse_ctl(int argc, const char* const* argv, const Environment& environment) {
  CtlOptions options;
  Texts texts;
  CLI::App app("", "ddprunctl");
  declare(app, options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // The help of the whole program, also after a verb: it has the examples.
    return CtlOutcome(PrintAndExit{app.help()});
  } catch (const CLI::CallForVersion&) {
    return CtlOutcome(PrintAndExit{"ddprunctl " DDPRUN_VERSION "\n"});
  } catch (const CLI::ParseError& error) {
    return misuse(app, error);
  }
  if (!texts.completion.empty()) return completion(app, texts.completion);
  if (app.get_subcommands().empty()) {
    return usage("give a command: " + verbs_of(app) + "; see ddprunctl --help");
  }
  if (const auto run_id = parse_run_id(options.run_id); !run_id) {
    return usage("run '" + plain_line(options.run_id) + "': " + run_id.error().context);
  }
  options.reason = plain_line(options.reason);
  if (const auto failure = resolve_watching(texts, options)) return *failure;
  using enum CtlOptions::Verb;
  const bool of_this_machine = options.verb == kLogs || options.verb == kStacks ||
                               options.verb == kDebug ||
                               (options.verb == kHistory && texts.endpoint.empty()) ||
                               (options.verb == kTop && given_endpoint(texts, environment).empty());
  options.queries_daemon = !of_this_machine && options.verb != kRas;
  options.own_first = options.verb == kReport && texts.endpoint.empty();
  if (of_this_machine) return CtlOutcome(std::move(options));
  if (options.verb == kRas) {
    if (const auto failure = resolve_ras(texts, options)) return *failure;
    return CtlOutcome(std::move(options));
  }
  if (const auto failure = resolve(texts, environment, options)) {
    if (!options.own_first) return *failure;
    options.queries_daemon = false;  // Without a token, this machine's history is left.
  }
  return CtlOutcome(std::move(options));
}

}  // namespace ddprun::launcher
