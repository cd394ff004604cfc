#pragma once
// What ddprun prints about itself, made from the table of flags. Pure; called by parse().

#include <string>

namespace ddprun::launcher {

enum class Flags {
  kUsedMost,  // --help: those that most command lines are made of.
  kAll,       // --help all.
};
std::string help_text(Flags which);  // At most 100 columns wide.

}  // namespace ddprun::launcher
