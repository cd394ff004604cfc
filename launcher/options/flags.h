#pragma once
// ddprun's table of options: one row per option, which stores into its member of Options. Pure.

#include <span>

#include "common/options/command_line.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

std::span<const Option> all_options();
std::vector<std::string> option_names();  // "--nnodes", ...: for "did you mean".

// A sentence for each variable that is nearly, but not quite, the PET_* of an option.
std::vector<std::string> misspelled_variables(const Environment& environment);

// A command line taken apart, and the defaults of PET_* and other variables -> Options. Refuses
// wrong values, and contradictions that need no knowledge of this machine. Called by parse().
Result<Options> read_options(const CommandLine& line, const Environment& environment);

}  // namespace ddprun::launcher
