#pragma once
// The options of `ddprun replay`: their table, and what they become. Pure.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/options/option.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::string_view kReplayCommand = "replay";  // ddprun's first argument.

struct ReplayOptions {
  std::string bundle;
  std::optional<int> shard;       // Absent: the one to blame.
  bool pdb = false;               // Python's debugger, at what is not caught.
  std::vector<std::string> with;  // A debugger and its options, before the program.
  bool show = false;              // Only print what the bundle has.
  bool bisect = false;            // `bundle` is a folder.
  std::string run;                // With `bisect`: of which run; empty: of the only one.
  std::vector<std::string> argv;  // PROGRAM and its arguments; empty: the bundle's.
};

// The table; for completion.
std::span<const Option> replay_options();

using ReplayOutcome = std::variant<ReplayOptions, PrintAndExit>;

// `argv` begins with "replay". A failure is Errc::kBadOption and its context one sentence.
Result<ReplayOutcome> parse_replay(int argc, const char* const* argv);

// The command with Python's debugger in it, behind the interpreter and its options; empty: it is
// not Python's.
std::vector<std::string> with_pdb(const std::vector<std::string>& command);

}  // namespace ddprun::launcher
