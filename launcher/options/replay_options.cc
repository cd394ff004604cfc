#include "launcher/options/replay_options.h"

#include <algorithm>

#include "common/options/command_line.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr int kShardMax = 1'000'000'000;

constexpr const char* kReplayExamples = R"(Examples
  ddprun replay bundles/job7-step-812.bundle           does it fail here, too?
  ddprun replay job7-step-812.bundle --pdb             stop where the exception is raised
  ddprun replay job7-step-812.bundle --with 'gdb --args'
  ddprun replay job7-step-812.bundle --shard 5         another shard of the same step
  ddprun replay job7-step-812.bundle -- train.py --lr 0.1
                                                       a program that was changed meanwhile
  ddprun replay job7-step-812.bundle --show            what the bundle has; starts nothing
  ddprun replay --bisect bundles                       the first bad step of a run

A bundle has the program's command and its state: replay only what you trust. docs/replay.md has
more. Exit codes: 0: as in the run; 1: not as in the run; 2: usage; the program's own if it fails;
128+N: signal N ended it. With --bisect: 0: the step was found; 1: there is none.
To start a program named replay: ddprun ./replay.)";

const OptionTable<ReplayOptions>& replay_table() {
  using O = ReplayOptions;
  static const OptionTable<O> kTable = {
      {"",
       {{"shard", &O::shard, integer_between(0, kShardMax), "N",
         "Compute this shard of the step [the one that failed; without one, all]"},
        {"pdb", &O::pdb, "Start Python's debugger where an exception is not caught"},
        {"with",
         &O::with,
         parse_words,
         "COMMAND",
         "Start the program with this: 'gdb --args', valgrind, compute-sanitizer",
         {.excludes = "pdb"}},
        {"show", &O::show, "Print what the bundle has, and start nothing"},
        {"bisect",
         &O::bisect,
         "Find the first bad step of a run: BUNDLE is the folder of its bundles",
         {.excludes = "shard pdb show"}},
        {"run",
         &O::run,
         any_text,
         "RUN",
         "With --bisect: the run, if the folder has bundles of several",
         {.needs = "bisect"}},
        {"bundle",
         &O::bundle,
         any_text,
         "BUNDLE",
         "The file that the run has written",
         {.words = "@file", .positional = true, .required = true}},
        {"help", PrintsAndEnds{}, "", "Print this help message and exit", {.letter = 'h'}}}}};
  return kTable;
}

}  // namespace

std::span<const Option> replay_options() { return replay_table().options(); }

Result<ReplayOutcome> parse_replay(int argc, const char* const* argv) {
  const ProgramSpec program = {
      .name = "ddprun replay",
      .description =
          "Computes a step of an elastic job again, alone, from the bundle that the run "
          "has written when the step failed. usage: ddprun replay BUNDLE [options] "
          "[-- PROGRAM [its arguments]]",
      .footer = kReplayExamples,
      .options = replay_options()};
  const auto dashes = std::find(argv, argv + argc, std::string_view("--"));
  const auto line = read_command_line(program, static_cast<int>(dashes - argv), argv);
  if (!line) {
    const bool has_program = line.error().context.starts_with("unknown argument");
    return usage(line.error().context + (has_program ? "; PROGRAM stands behind --" : ""));
  }
  if (!line->to_print.empty()) return ReplayOutcome(PrintAndExit{line->to_print});
  ReplayOptions options;
  const auto stored = replay_table().store(line->values, options);
  if (!stored) return stored.error();
  if (dashes != argv + argc) options.argv.assign(dashes + 1, argv + argc);
  return ReplayOutcome(std::move(options));
}

std::vector<std::string> with_pdb(const std::vector<std::string>& command) {
  const std::string name = command.front().substr(command.front().rfind('/') + 1);
  if (!name.starts_with("python")) return {};
  std::size_t at = 1;
  while (at < command.size() && command[at].starts_with('-') && command[at] != "-m") {
    if (command[at] == "-c") return {};
    at += command[at] == "-X" || command[at] == "-W" ? 2 : 1;
  }
  if (at >= command.size()) return {};
  std::vector<std::string> result = command;
  const std::vector<std::string> pdb = {"-m", "pdb", "-c", "continue"};
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(at), pdb.begin(), pdb.end());
  return result;
}

}  // namespace ddprun::launcher
