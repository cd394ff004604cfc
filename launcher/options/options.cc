// argv -> flag names and raw texts: the only file that uses CLI11. read_options.cc interprets the
// texts.

#include "launcher/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "launcher/options/completion.h"
#include "launcher/options/flags.h"
#include "launcher/options/help.h"
#include "launcher/options/read_options.h"

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "0.0.0"
#endif

namespace ddprun::launcher {
namespace {

// CLI11 takes "[a,b]" for a list and "--flag=" for a flag without its value. A byte that no
// argument contains, appended to those and removed again, prevents that.
constexpr char kGuard = '\x01';

std::string guarded(const std::string& argument) {
  const bool needs = argument.ends_with(']') || argument.ends_with('=');
  return needs ? argument + kGuard : argument;
}

std::string unguarded(std::string text) {
  if (text.ends_with(kGuard)) text.pop_back();
  return text;
}

void declare(CLI::App& app) {
  app.prefix_command();
  app.set_help_flag();
  for (const Flag& flag : all_flags()) {
    std::string names = "--" + std::string(flag.name);
    if (underscored(flag.name) != flag.name) names += ",--" + underscored(flag.name);
    if (flag.letter != '\0') names += std::string(",-") + flag.letter;
    CLI::Option* option = flag.value.empty() ? app.add_flag(names) : app.add_option(names);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

// Suggests our flag for a flag of mpirun, accelerate, deepspeed or srun.
std::string habit_of_others(std::string_view flag) {
  struct Habit {
    std::string_view theirs, ours;
  };
  constexpr Habit kHabits[] = {
      {"-n", "--nproc-per-node"},
      {"-np", "--nproc-per-node"},
      {"-N", "--nproc-per-node"},
      {"--nprocs", "--nproc-per-node"},
      {"--num-processes", "--nproc-per-node"},
      {"--num-gpus", "--nproc-per-node"},
      {"--gpus", "--nproc-per-node"},
      {"--ntasks-per-node", "--nproc-per-node"},
      {"--num-machines", "--nnodes"},
      {"--num-nodes", "--nnodes"},
      {"--nodes", "--nnodes"},
      {"--machine-rank", "--node-rank"},
      {"--main-process-ip", "--master-addr"},
      {"--main-process-port", "--master-port"},
      {"-H", "--hosts"},
      {"--hostfile", "--hosts a,b or --host-discovery SCRIPT"},
      {"--machinefile", "--hosts a,b or --host-discovery SCRIPT"},
  };
  if (flag == "-x" || flag == "-genv") return "; workers get the whole environment as it is";
  std::string dashed(flag);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const Habit& habit : kHabits) {
    if (dashed == habit.theirs) return "; did you mean " + std::string(habit.ours) + "?";
  }
  return "";
}

Failure unknown_option(std::string_view argument) {
  const std::string name(argument.substr(0, argument.find('=')));
  const std::string habit = habit_of_others(name);
  if (!habit.empty()) return usage("unknown option " + name + habit);
  const std::string meant = did_you_mean(name, flag_names());
  return usage("unknown option " + name + (meant.empty() ? "; see ddprun --help all" : meant));
}

// CLI11 reports only that something is missing; the flag is the last word of the command line.
Failure incomplete(const CLI::ParseError& error, std::string_view last_argument) {
  for (const Flag& flag : all_flags()) {
    const std::string letter = {'-', flag.letter};
    const std::string dashed = "--" + std::string(flag.name);
    const bool named = last_argument == dashed || last_argument == "--" + underscored(flag.name) ||
                       last_argument == letter;
    if (named) return usage(dashed + " needs a value: " + std::string(flag.value));
  }
  return usage(error.what());
}

// The flags that a word such as "--nproc-per=2" may abbreviate, in either spelling.
std::vector<const Flag*> abbreviated(std::string_view typed) {
  std::vector<const Flag*> found;
  if (typed.size() < 3 || !typed.starts_with("--")) return found;
  typed.remove_prefix(2);
  for (const Flag& flag : all_flags()) {
    const bool begins = flag.name.starts_with(typed) || underscored(flag.name).starts_with(typed);
    if (begins) found.push_back(&flag);
  }
  return found;
}

// "--nproc-per=2" -> "--nproc-per-node=2", as argparse takes it. Whole names are not passed here:
// CLI11 has taken them. Empty: not the beginning of any flag.
Result<std::string> expanded(const std::string& argument) {
  const std::string typed = argument.substr(0, argument.find('='));
  const std::vector<const Flag*> flags = abbreviated(typed);
  if (flags.empty()) return std::string();
  if (flags.size() == 1) return "--" + std::string(flags[0]->name) + argument.substr(typed.size());
  std::string names;
  for (const Flag* flag : flags) {
    names += (names.empty() ? "--" : flag == flags.back() ? " or --" : ", --");
    names += flag->name;
  }
  return usage("option " + typed + " is ambiguous: " + names + "?");
}

// The words that CLI11 did not take: the program, and all after it.
Result<std::vector<std::string>> take(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> backwards(words.rbegin(), words.rend());
  try {
    app.parse(backwards);
  } catch (const CLI::ParseError& error) {
    return incomplete(error, words.empty() ? "" : words.back());
  }
  return app.remaining();
}

Result<RawOptions> tokenize(int argc, const char* const* argv) {
  CLI::App app;
  declare(app);
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) words.push_back(guarded(argv[i]));
  Result<std::vector<std::string>> rest = take(app, words);
  while (rest && !rest->empty()) {
    const Result<std::string> whole = expanded(rest->front());
    if (!whole) return whole.error();
    if (whole->empty() || *whole == rest->front()) break;
    words[words.size() - rest->size()] = *whole;
    rest = take(app, words);
  }
  if (!rest) return rest.error();
  RawOptions raw;
  for (std::string& text : *rest) raw.rest.push_back(unguarded(text));
  if (!raw.rest.empty() && raw.rest.front() == "--") {
    raw.rest.erase(raw.rest.begin());
  } else if (!raw.rest.empty() && raw.rest.front().starts_with('-')) {
    return unknown_option(raw.rest.front());
  }
  for (const Flag& flag : all_flags()) {
    const CLI::Option* option = app.get_option("--" + std::string(flag.name));
    if (option->count() > 0)
      raw.values[std::string(flag.name)] = unguarded(option->results().back());
  }
  return raw;
}

Result<std::optional<PrintAndExit>> printed(const RawOptions& raw) {
  if (const auto help = raw.values.find("help"); help != raw.values.end()) {
    const bool all = help->second == "all" || (!raw.rest.empty() && raw.rest.front() == "all");
    return PrintAndExit{help_text(all ? Flags::kAll : Flags::kUsedMost)};
  }
  if (raw.values.contains("version")) return PrintAndExit{"ddprun " DDPRUN_VERSION "\n"};
  const auto shell = raw.values.find("print-completion");
  if (shell == raw.values.end()) return std::optional<PrintAndExit>();
  if (shell->second == "bash" || shell->second == "zsh" || shell->second == "tcsh") {
    return PrintAndExit{completion_script(shell->second)};
  }
  return usage("--print-completion '" + shell->second + "': give bash, zsh or tcsh");
}

}  // namespace

Result<ParseOutcome> parse(int argc, const char* const* argv, const Environment& environment) {
  const Result<RawOptions> raw = tokenize(argc, argv);
  if (!raw) return raw.error();
  const Result<std::optional<PrintAndExit>> text = printed(*raw);
  if (!text) return text.error();
  if (*text) return ParseOutcome(**text);

  Result<Options> options = read_options(*raw, environment);
  if (!options) return options.error();
  if (options->spares > 0 && options->max_restarts == 0) {
    return usage("--spares needs --max-restarts: a seat that a spare takes counts as a restart");
  }
  options->invoked_as = argc > 0 ? argv[0] : "ddprun";
  return ParseOutcome(std::move(*options));
}

std::vector<int> handled_signals(const Options& options) {
  std::vector<int> all = options.signals_to_handle;
  for (const int signal : options.preempt_signals) {
    if (std::find(all.begin(), all.end(), signal) == all.end()) all.push_back(signal);
  }
  return all;
}

}  // namespace ddprun::launcher
