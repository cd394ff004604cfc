#pragma once
// The help texts of ddprun, made from the table of flags, and its hints at likely mistakes. Pure;
// called by parse(), and by node.cc when a run has failed.

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

// One of ddprun's own flags behind PROGRAM, the likeliest mistake of a first hour: there it is
// PROGRAM's, which refuses it. The hint for the user, or an empty text.
// `last_words` is the last output of the worker that
// failed first: only a flag that the worker itself complained about is mentioned, since PROGRAM may
// well have a flag of the same name.
std::string misplaced_flag_hint(const std::string& program,
                                const std::vector<std::string>& arguments,
                                std::string_view last_words);

// The hint for a program that has put MASTER_ADDR into a URL unchanged though it is an IPv6
// address.
std::string bare_ipv6_hint(std::string_view last_words);

}  // namespace ddprun::launcher
