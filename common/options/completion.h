#pragma once
// Completion scripts of a program, made from its table of options. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "common/options/option.h"

namespace ddprun {

// `shell` is "bash", "zsh" or "tcsh", as for --print-completion. Of a program that starts another
// (ddprun) it completes options up to PROGRAM, files behind it, and behind the name of a command
// its own options; tcsh cannot find out where either is. Of other programs it completes commands
// and the options of each.
Result<std::string> completion_script(std::string_view shell, const ProgramSpec& program);

// The words that are offered for the value of an option; none if any text may follow, or a file.
std::vector<std::string> offered_words(const Option& option);

}  // namespace ddprun
