#include "launcher/ctl/ctl_options.h"

#include <algorithm>

#include "common/options/command_line.h"
#include "common/options/completion.h"
#include "common/release.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "launcher/options/option_values.h"
#include "launcher/watch/debug.h"

namespace ddprun::launcher {
namespace {

constexpr std::uint16_t kDaemonPort = 29'400;
constexpr int kProcessMax = 1 << 22;  // The kernel's own limit.

// Options, and texts whose meaning depends on the verb.
struct CtlDraft : CtlOptions {
  std::string given_endpoint;
  std::string given_token_file;
  std::string ras_address;
  bool no_auth = false;
};

using enum CtlOptions::Verb;

Failure no_number() { return usage("give a number; see ddprunctl --help"); }

// The number of a rank, or of nodes.
Result<int> parse_count(std::string_view text) {
  const auto count = parse_integer(text, 0, kNodesMax * kLocalWorkersMax - 1);
  if (count) return count;
  return as_number<double>(text) ? usage("give a number from 0") : no_number();
}

Result<Milliseconds> parse_limit(std::string_view text) {
  constexpr double kSecondsMax = 3600;
  const auto seconds = as_number<double>(text);
  if (!seconds) return no_number();
  if (!(*seconds > 0 && *seconds <= kSecondsMax)) return usage("give seconds above 0, up to 3600");
  return Milliseconds(static_cast<std::int64_t>(*seconds * 1000) + 1);
}

Result<Milliseconds> parse_interval(std::string_view text) {
  constexpr double kLeast = 0.1, kMost = 3600;
  const auto seconds = as_number<double>(text);
  if (!seconds) return no_number();
  if (!(*seconds >= kLeast && *seconds <= kMost)) return usage("give seconds from 0.1 to 3600");
  return Milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

// "45s", "30m", "6h", "2d".
Result<double> parse_time(std::string_view text) {
  constexpr double kSecondsMax = 10.0 * 365 * 86'400;
  const auto wrong = [] { return usage("give a time such as 45s, 30m, 6h or 2d, up to 3650d"); };
  if (text.empty()) return wrong();
  const char unit = text.back();
  const double seconds = unit == 's'   ? 1
                         : unit == 'm' ? 60
                         : unit == 'h' ? 3'600
                         : unit == 'd' ? 86'400
                                       : 0;
  const auto number = as_number<double>(text.substr(0, text.size() - 1));
  if (seconds == 0 || !number) return wrong();
  const double time = *number * seconds;
  return time > 0 && time <= kSecondsMax ? Result<double>(time) : wrong();
}

Result<double> parse_share(std::string_view text) {
  const auto percent = as_number<double>(text);
  if (percent && *percent >= 0 && *percent <= 100) return *percent / 100;
  return usage("give a percentage from 0 to 100");
}

// A list of what `parser` takes.
template <class Parser>
auto list_of(Parser parser) {
  return [parser](std::string_view text) {
    using Value = std::remove_cvref_t<decltype(*parser(text))>;
    Result<std::vector<Value>> all = std::vector<Value>();
    while (true) {
      const std::size_t comma = std::min(text.find(','), text.size());
      auto value = parser(text.substr(0, comma));
      if (!value) return Result<std::vector<Value>>(value.error());
      all->push_back(std::move(*value));
      if (comma == text.size()) return all;
      text.remove_prefix(comma + 1);
    }
  };
}

Result<NodeNumbers> parse_choice(std::string_view text) {
  constexpr int kMost = 10'000;
  const auto nodes = parse_nnodes(text);
  if (nodes && nodes->max <= kMost) return NodeNumbers{nodes->min, nodes->max};
  return usage("give N or MIN:MAX, or several with commas, from 1 to 10000");
}

Result<int> parse_spares(std::string_view text) {
  const auto spares = parse_integer(text, 0, 1'000);
  if (spares) return spares;
  return usage("give numbers from 0 to 1000, such as 0,1,2");
}

// Minutes; nothing: the best.
Result<std::optional<double>> parse_checkpoint(std::string_view text) {
  if (text == "auto") return std::optional<double>();
  const auto minutes = as_number<double>(text);
  constexpr double kMost = 100'000;
  if (minutes && *minutes >= 0.001 && *minutes <= kMost) return std::optional(*minutes * 60);
  return usage("give auto, or minutes such as 10 or 0.5, or several with commas");
}

Result<std::string> parse_handler(std::string_view text) {
  if (is_handler(std::string(text))) return std::string(text);
  return usage("it is no handler: give NAME or NAME?KEY=VALUE, as in a URL");
}

// A process, or "all".
Result<std::string> parse_end(std::string_view text) {
  if (text == "all" || parse_integer(text, 1, kProcessMax)) return std::string(text);
  return usage("give the number of a process, as ddprunctl preload lists it, or all");
}

Result<std::string> parse_reason(std::string_view text) { return plain_line(text); }

// The options before any verb.
const OptionTable<CtlDraft>& ctl_table() {
  using D = CtlDraft;
  static const OptionTable<D> kTable = {
      {"",
       {
           {"help", PrintsAndEnds{}, "", "Print this help message and exit", {.letter = 'h'}},
           {"version", PrintsAndEnds{}, "", "Display program version information and exit"},
           {"rdzv-endpoint",
            &D::given_endpoint,
            any_text,
            "HOST[:PORT]",
            "HOST[:PORT] of the daemon [127.0.0.1:29400]",
            {.letter = 'e'}},
           {"token-file", &D::given_token_file, any_text, "FILE",
            "File whose first line is the daemon's token"},
           {"print-completion", PrintsAndEnds{}, "bash|zsh|tcsh",
            "Prints a completion script for bash, zsh or tcsh"},
           {"no-auth",
            &D::no_auth,
            "The daemon was started with --no-auth",
            {.excludes = "token-file"}},
       }}};
  return kTable;
}

struct CtlVerb {
  CtlOptions::Verb verb;
  std::string_view name;
  std::string_view help;
  OptionTable<CtlDraft> table;
};

// Where an option of `whatif` is stored.
template <class Value>
auto whatif(Value WhatIf::*member) {
  return [member](CtlDraft& draft) -> Value& { return draft.what_if.*member; };
}

const std::vector<CtlVerb>& verbs() {
  using D = CtlDraft;
  using Row = OptionRow<D>;
  constexpr OptionTraits kWord = {.positional = true};
  constexpr OptionTraits kNeeded = {.positional = true, .required = true};
  constexpr OptionTraits kNeededNumber = {.type = "INT", .positional = true, .required = true};
  constexpr OptionTraits kSeconds = {.type = "FLOAT"};
  constexpr OptionTraits kPercent = {.type = "FLOAT"};
  constexpr OptionTraits kTime = {.words = "10m 1h 6h 1d 30d", .type = "TIME"};
  constexpr std::string_view kFields = "As JSON; docs/operations.md has its fields";
  const Row this_run = {"run", &D::run_id, parse_run_id, "ID", "This run only"};
  const Row json = {"json", &D::json, kFields};
  const Row run = {
      "run",  &D::run_id, parse_run_id, "RUN", "The run's id, or its number in the history",
      kNeeded};
  const Row run_of_daemon = {"run", &D::run_id, parse_run_id, "RUN", "The run's id", kNeeded};
  const Row rank = {"rank", &D::rank, parse_count, "RANK", "The rank", kNeededNumber};
  const Row reason = {"reason", &D::reason, parse_reason, "TEXT",
                      "The reason, for the nodes and the verdict"};
  static const std::vector<CtlVerb> kVerbs = {
      {kStatus, "status", "All runs, or one run with all its nodes", {{"", {this_run, json}}}},
      {kNodes, "nodes", "The nodes of all runs, or of one", {{"", {this_run, json}}}},
      {kDrain,
       "drain",
       "Removes a node; its run continues without it",
       {{"",
         {{"node", &D::node, any_text, "NODE", "The node's id, or the name of its host", kNeeded},
          {"run", &D::run_id, parse_run_id, "ID", "The node's run, if that is ambiguous"},
          {"force", &D::force, "Even if only this node has the state of an elastic job"},
          reason}}}},
      {kCancel, "cancel", "Ends a run on all its nodes", {{"", {run_of_daemon, reason}}}},
      {kResize,
       "resize",
       "Sets the number of nodes of a run",
       {{"",
         {run_of_daemon,
          {"nodes", &D::nodes, parse_count, "NODES", "Between MIN and MAX of its --nnodes",
           kNeededNumber},
          reason}}}},
      {kReport,
       "report",
       "Where a run's time went: JSON, or a page",
       {{"", {run, {"html", &D::html_file, any_text, "FILE", "Write a page to this file"}}}}},
      {kRas,
       "ras",
       "Missing ranks and differing counts, as NCCL reports them",
       {{"",
         {this_run,
          {"address", &D::ras_address, any_text, "HOST:PORT",
           "HOST:PORT of NCCL_RAS_ADDR [that of the workers on this machine]"},
          {"timeout", &D::ras_limit, parse_limit, "SECONDS",
           "Seconds to wait for a job's answer [20]", kSeconds},
          {"json", &D::json, "As NCCL's own JSON (2.28.7 and later)"}}}}},
      {kTop,
       "top",
       "Runs in progress: steps, late ranks, where the time goes",
       {{"",
         {this_run,
          {"once", &D::once, "Print once, as into a pipe"},
          {"json", &D::json, "Once, as JSON; docs/operations.md has its fields"},
          {"interval", &D::interval, parse_interval, "SECONDS", "Seconds between two updates [2]",
           kSeconds}}}}},
      {kLogs,
       "logs",
       "What workers on this machine wrote last",
       {{"",
         {{"run", &D::run_id, parse_run_id, "RUN",
           "The run's id, or its number in the history [the last]", kWord},
          {"rank",
           &D::rank,
           parse_count,
           "RANK",
           "This rank only",
           {.type = "INT", .positional = true}},
          {"follow", &D::follow, "Continue until the run ends", {.letter = 'f'}}}}}},
      {kStacks,
       "stacks",
       "Where a worker on this machine is: the stacks of its threads",
       {{"", {run, rank}}}},
      {kDebug,
       "debug",
       "Answers of PyTorch's own debug handlers in a worker here",
       {{"",
         {run,
          rank,
          {"handler", &D::handler, parse_handler, "HANDLER",
           "NAME or 'NAME?KEY=VALUE' [lists the names]", kWord},
          {"timeout", &D::debug_limit, parse_limit, "SECONDS",
           "Seconds to wait for the answer [60]", kSeconds}}}}},
      {kHistory,
       "history",
       "The last runs on this machine, or of a daemon (-e)",
       {{"",
         {{"run", &D::run_id, parse_run_id, "RUN", "The run's id, or its number in the list",
           kWord},
          json}}}},
      {kCapture,
       "capture",
       "A bundle of an elastic job's next step, for ddprun replay",
       {{"", {run}}}},
      {kPreload,
       "preload",
       "What runs have kept in memory here for the next ones",
       {{"", {{"end", &D::end, parse_end, "PID|all", "Free it, or all of it", {.words = "all"}}}}}},
      {kHealth, "health", "Whether the agents of runs on this machine answer", {{"", {this_run}}}},
      {kWhatIf,
       "whatif",
       "A run with other spares, nodes or checkpoints",
       {{"",
         {{"run", &D::run_id, parse_run_id, "RUN",
           "The run's id, or its number in the history [the last]", kWord},
          {"from", &D::account_file, any_text, "FILE", "Read the run's report from this file"},
          {"mtbf", whatif(&WhatIf::mtbf), parse_time, "TIME",
           "Between failures of the whole run, such as 6h [as in the run]", kTime},
          {"lost-nodes", whatif(&WhatIf::node_loss_share), parse_share, "PERCENT",
           "Failures that take their node with them [as in the run]", kPercent},
          {"repair", whatif(&WhatIf::repair), parse_time, "TIME",
           "Until another node replaces a lost one [as in the run]", kTime},
          {"spare-nodes", whatif(&WhatIf::spare_nodes), list_of(parse_spares), "N,...",
           "Nodes in reserve, beyond those of the run"},
          {"spares", whatif(&WhatIf::spares), list_of(parse_spares), "N,...",
           "Workers in reserve on each node, as ddprun --spares"},
          {"nodes", whatif(&WhatIf::nodes), list_of(parse_choice), "N|MIN:MAX,...",
           "Numbers of nodes, as ddprun --nnodes"},
          {"checkpoint", whatif(&WhatIf::intervals), list_of(parse_checkpoint), "auto|MINUTES,...",
           "Minutes between checkpoints; auto: the best interval"},
          {"checkpoint-cost", whatif(&WhatIf::checkpoint), parse_time, "TIME",
           "For which a checkpoint stops training [as in the run]", kTime},
          {"for", whatif(&WhatIf::length), parse_time, "TIME",
           "Length of the run [as long as it was]", kTime},
          {"json", &D::json, "As JSON; docs/whatif.md has its fields"}}}}},
  };
  return kVerbs;
}

std::optional<Failure> resolve_ras(CtlDraft& options) {
  const std::string& text = options.ras_address;
  if (text.empty()) return std::nullopt;
  const auto parsed = parse_endpoint(text);
  if (!parsed) return usage("--address '" + text + "': " + parsed.error().context);
  if (!parsed->port) return usage("--address '" + text + "' has no port");
  options.ras = *parsed;
  return std::nullopt;
}

std::string endpoint_of(const CtlDraft& options, const Environment& environment) {
  if (!options.given_endpoint.empty()) return options.given_endpoint;
  const std::string endpoint = value_of(environment, "PET_RDZV_ENDPOINT");
  return endpoint.empty() ? value_of(environment, "DDPRUN_ENDPOINT") : endpoint;
}

std::optional<Failure> resolve(const Environment& environment, CtlDraft& options) {
  std::string endpoint = endpoint_of(options, environment);
  if (endpoint.empty()) endpoint = "127.0.0.1";
  const auto parsed = parse_endpoint(endpoint);
  if (!parsed) return usage("--rdzv-endpoint '" + endpoint + "': " + parsed.error().context);
  options.endpoint = *parsed;
  if (!options.endpoint.port) options.endpoint.port = kDaemonPort;

  options.authenticated = !options.no_auth;
  if (options.no_auth) return std::nullopt;
  if (!options.given_token_file.empty()) {
    options.token_file = options.given_token_file;
  } else if (value_of(environment, "DDPRUN_TOKEN").empty()) {
    options.token_file = value_of(environment, "DDPRUN_TOKEN_FILE");
    if (options.token_file->empty()) {
      return usage("the daemon's token is needed: --token-file FILE or DDPRUN_TOKEN, or --no-auth");
    }
  }
  return std::nullopt;
}

Result<CtlOutcome> resolved(CtlDraft options, const Environment& environment) {
  const bool of_this_machine = options.verb == kLogs || options.verb == kStacks ||
                               options.verb == kDebug || options.verb == kHealth ||
                               options.verb == kCapture || options.verb == kPreload ||
                               (options.verb == kHistory && options.given_endpoint.empty()) ||
                               (options.verb == kWhatIf && !options.account_file.empty()) ||
                               (options.verb == kTop && endpoint_of(options, environment).empty());
  if (!options.account_file.empty() && !options.run_id.empty()) {
    return usage("--from FILE has the report of a run: give no RUN beside it");
  }
  options.queries_daemon = !of_this_machine && options.verb != kRas;
  const bool reads_account =
      options.verb == kReport || (options.verb == kWhatIf && options.account_file.empty());
  options.own_first = reads_account && options.given_endpoint.empty();
  if (options.verb == kRas) {
    if (const auto failure = resolve_ras(options)) return *failure;
  } else if (!of_this_machine) {
    const auto failure = resolve(environment, options);
    if (failure && !options.own_first) return *failure;
    if (failure)
      options.queries_daemon = false;  // Without a token, this machine's history is left.
  }
  return CtlOutcome(CtlOptions(std::move(options)));
}

}  // namespace

Result<CtlOutcome> parse_ctl(int argc, const char* const* argv, const Environment& environment) {
  const ProgramSpec program = {
      .name = "ddprunctl",
      .description = "Shows and controls the runs of a ddprun-rendezvous daemon.",
      .footer = kCtlHelp,
      .options = ctl_options(),
      .commands = ctl_commands(),
      .version = std::string("ddprunctl ") + release(),
      .last_counts = false};
  const auto line = read_command_line(program, argc, argv);
  if (!line) return line.error();
  if (!line->to_print.empty()) return CtlOutcome(PrintAndExit{line->to_print});
  if (const OptionValue* shell = line->find("print-completion"); shell && !shell->text.empty()) {
    const auto script = completion_script(shell->text, program);
    return script ? Result<CtlOutcome>(PrintAndExit{*script}) : script.error();
  }
  if (line->command.empty()) {
    return usage("give a command: " + command_list(program.commands) + "; see ddprunctl --help");
  }
  const CtlVerb& verb = *std::ranges::find(verbs(), line->command, &CtlVerb::name);
  CtlDraft draft;
  draft.verb = verb.verb;
  if (const auto stored = ctl_table().store(line->values, draft); !stored) return stored.error();
  if (const auto stored = verb.table.store(line->command_values, draft); !stored) {
    return stored.error();
  }
  return resolved(std::move(draft), environment);
}

std::span<const Option> ctl_options() { return ctl_table().options(); }

std::vector<CommandSpec> ctl_commands() {
  std::vector<CommandSpec> commands;
  for (const CtlVerb& verb : verbs()) {
    commands.push_back({verb.name, verb.help, verb.table.options()});
  }
  return commands;
}

}  // namespace ddprun::launcher
