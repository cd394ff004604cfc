#pragma once
// Completion scripts of ddprun, made from the table of flags. Pure.

#include <string>
#include <string_view>

namespace ddprun::launcher {

// `shell` is "bash", "zsh" or "tcsh". The first two complete flags up to PROGRAM, and files behind
// it, and behind the word doctor its own flags; tcsh cannot find out where either is.
std::string completion_script(std::string_view shell);

}  // namespace ddprun::launcher
