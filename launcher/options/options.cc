// argv -> Options, or a text to print. flags.cc interprets the values.

#include "launcher/options/options.h"

#include <algorithm>

#include "common/options/completion.h"
#include "common/release.h"
#include "launcher/options/doctor_options.h"
#include "launcher/options/flags.h"
#include "launcher/options/help.h"
#include "launcher/options/replay_options.h"
#include "launcher/options/slurm_options.h"

namespace ddprun::launcher {
namespace {

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
  const std::string meant = did_you_mean(name, option_names());
  return usage("unknown option " + name + (meant.empty() ? "; see ddprun --help all" : meant));
}

Result<CommandLine> words_of(int argc, const char* const* argv) {
  Result<CommandLine> line = read_before_program(all_options(), argc, argv);
  if (!line || line->rest.empty()) return line;
  if (line->rest.front() == "--") {
    line->rest.erase(line->rest.begin());
  } else if (line->rest.front().starts_with('-')) {
    return unknown_option(line->rest.front());
  }
  return line;
}

Result<std::optional<PrintAndExit>> printed(const CommandLine& line) {
  if (const OptionValue* help = line.find("help")) {
    const bool all = help->text == "all" || (!line.rest.empty() && line.rest.front() == "all");
    return PrintAndExit{help_text(all ? Flags::kAll : Flags::kUsedMost)};
  }
  if (line.find("version")) return PrintAndExit{std::string("ddprun ") + release() + "\n"};
  const OptionValue* shell = line.find("print-completion");
  if (!shell) return std::optional<PrintAndExit>();
  const ProgramSpec program = {.name = "ddprun",
                               .options = all_options(),
                               .commands = {{kDoctorCommand, "", doctor_options()},
                                            {kReplayCommand, "", replay_options(), true},
                                            {kSlurmCommand, "", slurm_options(), true}},
                               .starts_program = true};
  const auto script = completion_script(shell->text, program);
  if (!script) return script.error();
  return PrintAndExit{*script};
}

bool is_given(const Options& options, std::string_view flag) {
  return std::ranges::any_of(options.given,
                             [&](const GivenOption& given) { return given.flag == flag; });
}

}  // namespace

Result<ParseOutcome> parse(int argc, const char* const* argv, const Environment& environment) {
  const Result<CommandLine> line = words_of(argc, argv);
  if (!line) return line.error();
  const Result<std::optional<PrintAndExit>> text = printed(*line);
  if (!text) return text.error();
  if (*text) return ParseOutcome(**text);

  Result<Options> options = read_options(*line, environment);
  if (!options) return options.error();
  if (options->spares > 0 && options->max_restarts == 0) {
    return usage("--spares needs --max-restarts: a seat that a spare takes counts as a restart");
  }
  if (options->preload_keep > 0 && options->preload.empty() && !is_given(*options, "--preload")) {
    return usage(
        "--preload-keep needs --preload auto, or --preload with modules: what they import "
        "is kept");
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
