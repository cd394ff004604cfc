#pragma once
// "did you mean ...": finds the known word that a mistyped one was most likely meant to be. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// The word of `known` that `word` abbreviates or nearly spells; empty if none is near enough to be
// named without seeming silly. '-' and '_' count as the same letter.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean NAME?" or nothing: the end of an error about an unknown name.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace ddprun::launcher
