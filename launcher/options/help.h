#pragma once
// The help texts of ddprun, made from the table of flags. Pure; called by parse().

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// "did you mean ...": finds the known word that a mistyped one was most likely meant to be. Pure.

// The word of `known` that `word` abbreviates or nearly spells; empty if none is near enough for a
// sensible suggestion. '-' and '_' count as the same letter.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean NAME?" or an empty text: the end of an error about an unknown name.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

enum class Flags {
  kUsedMost,  // --help: the flags of most command lines.
  kAll,       // --help all.
};
std::string help_text(Flags which);  // At most 100 columns wide.

// ddprun(1), made from the table of flags. deploy/man/ddprun.1 is its text; a test keeps them
// equal. Pure.
std::string manual_page();

}  // namespace ddprun::launcher
