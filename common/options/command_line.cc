#include "common/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <functional>
#include <sstream>

#include "common/text/display.h"

namespace ddprun {
namespace {

// CLI11 takes "[a,b]" for a list and "--flag=" for a flag without its value. A byte that no
// argument contains, appended to those and removed again, prevents that.
constexpr char kGuard = '\x01';

std::string guarded(const std::string& argument) {
  const bool needs = argument.ends_with(']') || argument.ends_with('=');
  return needs ? argument + kGuard : argument;
}

std::string unguarded(std::string text) {
  if (text.ends_with(kGuard)) text.pop_back();
  return text;
}

std::string all_names(const Option& option, bool both_spellings) {
  if (option.positional) return std::string(option.name);
  std::string names = option.letter == '\0' ? "" : std::string("-") + option.letter + ",";
  names += long_name(option);
  const std::string other = underscored(option.name);
  return both_spellings && other != option.name ? names + ",--" + other : names;
}

CLI::Option* declare(CLI::App& app, const Option& option, bool both_spellings) {
  const std::string names = all_names(option, both_spellings), help(option.help);
  return takes_value(option) ? app.add_option(names, CLI::callback_t(), help)
                             : app.add_flag(names, help);
}

std::vector<OptionValue> values_in(const CLI::App& app, std::span<const Option> options) {
  std::vector<OptionValue> values;
  for (const Option& option : options) {
    const std::string name = option.positional ? std::string(option.name) : long_name(option);
    const CLI::Option* given = app.get_option_no_throw(name);
    if (given == nullptr || given->count() == 0) continue;
    const std::vector<std::string> texts = given->results();
    std::string text = unguarded(texts.back());
    for (std::size_t i = texts.size() - 1; option.several && i > 0; --i) {
      text = unguarded(texts[i - 1]) + "," + text;
    }
    values.push_back({&option, name, std::move(text)});
  }
  return values;
}

// CLI11 reports only that something is missing; the option is the last word of the command line.
Failure incomplete(std::span<const Option> options, const CLI::ParseError& error,
                   std::string_view last_argument) {
  for (const Option& option : options) {
    const std::string letter = {'-', option.letter};
    const bool named = last_argument == long_name(option) ||
                       last_argument == "--" + underscored(option.name) || last_argument == letter;
    if (named) return usage(long_name(option) + " needs a value: " + std::string(option.value));
  }
  return usage(error.what());
}

// The options that a word such as "--nproc-per=2" may abbreviate, in either spelling.
std::vector<const Option*> abbreviated(std::span<const Option> options, std::string_view typed) {
  std::vector<const Option*> found;
  if (typed.size() < 3 || !typed.starts_with("--")) return found;
  typed.remove_prefix(2);
  for (const Option& option : options) {
    const bool begins =
        option.name.starts_with(typed) || underscored(option.name).starts_with(typed);
    if (begins) found.push_back(&option);
  }
  return found;
}

// Whether one of the words may be the option, whole, abbreviated or with other letters. Dashes and
// underscores are alike here.
bool may_be_in(const std::vector<std::string>& words, const Option& option) {
  return std::ranges::any_of(words, [&](std::string_view word) {
    if (!word.starts_with('-')) return false;
    if (!word.starts_with("--"))
      return option.letter != '\0' && word.find(option.letter) != word.npos;
    word = word.substr(2, word.find('=') - 2);
    return !word.empty() && word.size() <= option.name.size() &&
           std::ranges::equal(word, option.name.substr(0, word.size()), [](char typed, char name) {
             return typed == name || (typed == '_' && name == '-');
           });
  });
}

// "--nproc-per=2" -> "--nproc-per-node=2", as argparse takes it. Whole names are not passed here:
// CLI11 has taken them. Empty: not the beginning of any option.
Result<std::string> expanded(std::span<const Option> options, const std::string& argument) {
  const std::string typed = argument.substr(0, argument.find('='));
  const std::vector<const Option*> meant = abbreviated(options, typed);
  if (meant.empty()) return std::string();
  if (meant.size() == 1) return long_name(*meant[0]) + argument.substr(typed.size());
  std::string names;
  for (const Option* option : meant) {
    names += names.empty() ? "" : option == meant.back() ? " or " : ", ";
    names += long_name(*option);
  }
  return usage("option " + typed + " is ambiguous: " + names + "?");
}

// The words that CLI11 did not take: the program, and all after it.
Result<std::vector<std::string>> take(CLI::App& app, std::span<const Option> options,
                                      const std::vector<std::string>& words) {
  std::vector<std::string> backwards(words.rbegin(), words.rend());
  try {
    app.parse(backwards);
  } catch (const CLI::ParseError& error) {
    return incomplete(options, error, words.empty() ? "" : words.back());
  }
  return app.remaining();
}

void for_each_word(std::string_view words, const std::function<void(const std::string&)>& act) {
  std::istringstream stream{std::string(words)};
  for (std::string word; stream >> word;) act(word);
}

// For a program that starts no other program. CLI11 also makes its help, and checks which options
// need or exclude each other.
void declare_all(CLI::App& app, std::span<const Option> options, const ProgramSpec& program) {
  const auto policy =
      program.last_counts ? CLI::MultiOptionPolicy::TakeLast : CLI::MultiOptionPolicy::Throw;
  for (const Option& option : options) {
    if (option.name == "help") continue;  // CLI11 has declared it.
    if (option.name == "version") {
      app.set_version_flag("--version", std::string(program.version));
      continue;
    }
    CLI::Option* declared = declare(app, option, program.both_spellings);
    if (takes_value(option)) {
      declared->multi_option_policy(policy);
      declared->type_name(option.type_text.empty() ? "TEXT" : option.type_text);
      declared->default_str(option.default_text);
    }
    if (option.several) declared->expected(1, CLI::detail::expected_max_vector_size);
    declared->required(option.required);
    if (option.hidden) declared->group("");
  }
  for (const Option& option : options) {
    CLI::Option* one = app.get_option_no_throw(long_name(option));
    for_each_word(option.needs, [&](const auto& name) { one->needs(app.get_option("--" + name)); });
    for_each_word(option.excludes,
                  [&](const auto& name) { one->excludes(app.get_option("--" + name)); });
  }
}

// In our words, as CLI11's are those of a library.
Failure misuse(const CLI::App& app, const CLI::ParseError& error, const ProgramSpec& program) {
  const std::string see = "; see " + program.name + " --help";
  const auto chosen = app.get_subcommands();
  const auto extra = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && !extra.empty()) {
    const std::string first = unguarded(extra.front());
    const bool is_command = !program.commands.empty() && chosen.empty() && !first.starts_with('-');
    if (!is_command) return usage("unknown argument '" + first + "'" + see);
    return usage("unknown command '" + first + "': give " + command_list(program.commands) + see);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) && !chosen.empty()) {
    std::string name = error.what();
    name = name.substr(0, name.find(' '));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    return usage(chosen.front()->get_name() + " needs " + name + see);
  }
  return usage(plain_line(error.what()) + see);
}

}  // namespace

std::string command_list(std::span<const CommandSpec> commands) {
  std::string text;
  for (const CommandSpec& command : commands) {
    const bool is_first = &command == &commands.front(), is_last = &command == &commands.back();
    text += (is_first ? "" : is_last ? " or " : ", ") + std::string(command.name);
  }
  return text;
}

Result<CommandLine> read_before_program(std::span<const Option> options, int argc,
                                        const char* const* argv) {
  CLI::App app;
  app.prefix_command();
  app.set_help_flag();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) words.push_back(guarded(argv[i]));
  // CLI11 compares the names of each option with those of all others, which for a hundred takes
  // longer than the rest of a launch. So it gets those that may be there.
  for (const Option& option : options) {
    if (may_be_in(words, option)) declare(app, option, /*both_spellings=*/true);
  }
  Result<std::vector<std::string>> rest = take(app, options, words);
  while (rest && !rest->empty()) {
    const Result<std::string> whole = expanded(options, rest->front());
    if (!whole) return whole.error();
    if (whole->empty() || *whole == rest->front()) break;
    words[words.size() - rest->size()] = *whole;
    rest = take(app, options, words);
  }
  if (!rest) return rest.error();
  CommandLine line;
  line.values = values_in(app, options);
  for (std::string& text : *rest) line.rest.push_back(unguarded(text));
  return line;
}

Result<CommandLine> read_command_line(const ProgramSpec& program, int argc,
                                      const char* const* argv) {
  CLI::App app(std::string(program.description), program.name);
  app.footer(std::string(program.footer));
  declare_all(app, program.options, program);
  for (const CommandSpec& command : program.commands) {
    CLI::App* added = app.add_subcommand(std::string(command.name), std::string(command.help));
    declare_all(*added, command.options, program);
    added->fallthrough();
  }
  CommandLine line;
  std::vector<std::string> backwards;
  for (int i = argc - 1; i > 0; --i) backwards.push_back(guarded(argv[i]));
  try {
    app.parse(backwards);
  } catch (const CLI::CallForHelp&) {
    // The help of the program, also after a command: it has the examples.
    line.to_print = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.to_print = program.version + "\n";
    return line;
  } catch (const CLI::ParseError& error) {
    return misuse(app, error, program);
  }
  line.values = values_in(app, program.options);
  if (const auto chosen = app.get_subcommands(); !chosen.empty()) {
    line.command = chosen.back()->get_name();
    const auto spec = std::ranges::find(program.commands, line.command, &CommandSpec::name);
    line.command_values = values_in(*chosen.back(), spec->options);
  }
  return line;
}

}  // namespace ddprun
