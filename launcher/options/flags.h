#pragma once
// The table of all flags, used by the parser, the help text, the shell completion, the PET_*
// variables and the "did you mean" of errors. Pure.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct Flag {
  enum class Kind {
    kSwitch,  // Present or not.
    kValue,   // Takes one value.
    kPrint,   // Prints something and ends: --help, --version.
  };
  std::string_view group;  // The heading of the help text it stands under.
  std::string_view name;   // Dashed, without the leading "--".
  char letter;             // '\0': none.
  Kind kind;
  std::string_view value;    // The value's name in the help; empty for switches.
  std::string_view choices;  // For shell completion: words with spaces between them, behind a comma
                             // if several may be given; "@file", "@dir", "@hosts"; or empty.
  std::string_view help;     // One line, with the default in brackets.
};

std::span<const Flag> all_flags();
const Flag* find_flag(std::string_view dashed_name);  // nullptr: no such flag.
std::vector<std::string> flag_names();                // "--nnodes", ...: for "did you mean".

std::string underscored(std::string_view dashed_name);   // "nproc-per-node" -> "nproc_per_node"
std::string pet_variable(std::string_view dashed_name);  // "nproc-per-node" -> "PET_NPROC_PER_NODE"

}  // namespace ddprun::launcher
