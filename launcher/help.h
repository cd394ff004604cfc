#pragma once
// What ddprun prints about itself, made from the table of flags. Pure; called by parse().

#include <string>
#include <string_view>

namespace ddprun::launcher {

std::string help_text();                                // At most 100 columns wide.
std::string completion_script(std::string_view shell);  // "bash", "zsh", "tcsh".

}  // namespace ddprun::launcher
