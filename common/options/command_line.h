#pragma once
// A command line, split by a program's table of options but not interpreted: values are texts. The
// only module that uses CLI11. Pure.

#include <span>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/options/option.h"

namespace ddprun {

struct CommandLine {
  std::vector<OptionValue> values;  // In the order of the table; of an option given twice the last.
  std::string command;              // The chosen one of ProgramSpec::commands; empty: none.
  std::vector<OptionValue> command_values;  // Of its own options.
  std::vector<std::string> rest;            // The program to start and all after it.

  std::string to_print;  // For --help and --version, and nothing else is there.

  // nullptr: the option was not typed.
  const OptionValue* find(std::string_view dashed_name) const {
    for (const OptionValue& value : values) {
      if (value.option->name == dashed_name) return &value;
    }
    return nullptr;
  }
};

// The options before PROGRAM, as argparse's REMAINDER has it: PROGRAM and all after it are left as
// they were typed. Any beginning of a name that only one option has stands for it. `rest` may begin
// with "--", or with a word with dashes that is no option.
Result<CommandLine> read_before_program(std::span<const Option> options, int argc,
                                        const char* const* argv);

// All of a command line, of a program that starts no other. A failure is one sentence for the user.
Result<CommandLine> read_command_line(const ProgramSpec& program, int argc,
                                      const char* const* argv);

std::string command_list(std::span<const CommandSpec> commands);  // "status, nodes or drain"

}  // namespace ddprun
