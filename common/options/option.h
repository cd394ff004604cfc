#pragma once
// The options of a program as a table with one row per option. Help, manual page, completion, PET_*
// variables, config file and "did you mean" are made from the row, and the row stores the value.
// Each program has its own table. Pure.

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/error.h"

namespace ddprun {

// The text of an option -> its typed value: the parsers that every program uses. The failure of a
// parser only describes what is allowed ("give a whole number from 0 to 9"); the table of options
// puts the option and the offending text before it.

// A kBadOption failure: a sentence for the user.
Failure usage(std::string sentence);

// `text` in quotes as part of an error: one line, not too long, without control characters.
std::string quoted_value(std::string_view text);

Result<int> parse_integer(std::string_view text, int min, int max);
Result<bool> parse_switch(std::string_view text);     // "0", "1", "true", "false"
Result<std::string> any_text(std::string_view text);  // Never fails.

// The value as help shows it.
inline std::string value_text(const std::string& value) { return value; }
inline std::string value_text(int value) { return std::to_string(value); }

struct IntegerBetween {
  int min, max;
  // In CLI11's help.
  std::string type() const {
    return "INT:INT in [" + std::to_string(min) + " - " + std::to_string(max) + "]";
  }
  Result<int> operator()(std::string_view text) const { return parse_integer(text, min, max); }
};
inline IntegerBetween integer_between(int min, int max) { return {min, max}; }

// One of the words that were given to one_of().
template <class Value>
struct WordOf {
  std::map<std::string, Value, std::less<>> known;
  Result<Value> operator()(std::string_view text) const {
    if (const auto found = known.find(text); found != known.end()) return found->second;
    std::string list;
    for (const auto& [word, value] : known) list += (list.empty() ? "" : " or ") + word;
    return usage("give " + list);
  }
};
template <class Value>
WordOf<Value> one_of(std::initializer_list<std::pair<const char*, Value>> words) {
  return {{words.begin(), words.end()}};
}

// Properties that few options have; a row names those that it sets. Lists are separated by blanks.
struct OptionTraits {
  char letter = '\0';       // "-m" beside "--module".
  bool often_used = false;  // ddprun --help shows it; else only --help all.
  bool of_one_run = false;  // The config file refuses it as a default for all runs.
  // Gives the value if neither the option nor its PET_* does.
  std::string_view variable = "";
  // Variables; if one of them is set, the config file's value is not used.
  std::string_view settled_by = "";
  // An empty value is refused, and this is the cure.
  std::string_view if_empty = "";
  bool takes_empty = false;  // Else an empty value stands for none.
  // For completion, if the name of the value does not show it: words, behind a comma if several may
  // be given; or "@file", "@dir".
  std::string_view words = "";
  std::string_view needs = "";     // Names of options.
  std::string_view excludes = "";  // Likewise.
  std::string_view type = "";      // In CLI11's help, if the parser does not show it; else "TEXT".
  bool shows_default = false;      // In CLI11's help.
  bool several = false;            // Further values are added, as behind a comma.
  bool positional = false;
  bool required = false;
  bool hidden = false;  // In neither help nor completion.
};

struct Option : OptionTraits {
  enum class Kind {
    kSwitch,  // Present or not.
    kValue,   // Takes one value.
    kPrint,   // Prints something and ends: --help, --version.
  };
  std::string_view group;  // The heading of the help text it stands under.
  std::string_view name;   // Dashed, without the leading "--".
  Kind kind = Kind::kSwitch;
  std::string_view value;  // The name of the value in the help; empty: there is none.
  std::string_view help;   // One line, with the default in brackets.
  std::string type_text;   // The same in CLI11's help.
  std::string default_text;
};

inline bool takes_value(const Option& option) { return !option.value.empty(); }
inline std::string long_name(const Option& option) { return "--" + std::string(option.name); }

// nullptr: no such option.
const Option* find_option(std::span<const Option> options, std::string_view dashed_name);

std::string underscored(std::string_view dashed_name);   // "nproc-per-node" -> "nproc_per_node"
std::string pet_variable(std::string_view dashed_name);  // "nproc-per-node" -> "PET_NPROC_PER_NODE"

// A value that the user gave, and its source: "--nnodes", "PET_NNODES".
struct OptionValue {
  const Option* option = nullptr;
  std::string source;
  std::string text;  // Of a switch "true", "1", "false" or "0".
};

// In a row in place of an effect: the program prints something and ends.
struct PrintsAndEnds {};

// A row. `where` is a member of Settings, or a function of Settings& that finds the place to store
// at, or one of Settings& and the value that stores it. `parser` makes the value of a text.
template <class Settings>
struct OptionRow {
  using Store = std::function<Result<void>(std::string_view text, Settings& settings)>;

  template <class Where, class Parser>
  OptionRow(std::string_view name, Where where, Parser parser, std::string_view value,
            std::string_view help, const OptionTraits& traits = {})
      : option{traits, {}, name, Option::Kind::kValue, value, help, {}, {}} {
    if constexpr (requires { parser.type(); }) option.type_text = parser.type();
    if (!option.type.empty()) option.type_text = option.type;
    if constexpr (requires(Settings & unset) { value_text(std::invoke(where, unset)); }) {
      Settings unset;
      if (traits.shows_default) option.default_text = value_text(std::invoke(where, unset));
    }
    store = [where, parser](std::string_view text, Settings& settings) -> Result<void> {
      auto parsed = parser(text);
      if (!parsed) return parsed.error();
      put(where, settings, std::move(*parsed));
      return {};
    };
  }

  // A switch.
  template <class Where>
  OptionRow(std::string_view name, Where where, std::string_view help,
            const OptionTraits& traits = {})
      : OptionRow(name, where, parse_switch, "", help, traits) {
    option.kind = Option::Kind::kSwitch;
  }

  OptionRow(std::string_view name, PrintsAndEnds, std::string_view value, std::string_view help,
            const OptionTraits& traits = {})
      : option{traits, {}, name, Option::Kind::kPrint, value, help, {}, {}} {}

  template <class Where, class Value>
  static void put(const Where& where, Settings& settings, Value value) {
    if constexpr (std::is_invocable_v<const Where&, Settings&, Value>) {
      where(settings, std::move(value));
    } else {
      std::invoke(where, settings) = std::move(value);
    }
  }

  Option option;
  Store store;
};

template <class Settings>
class OptionTable {
 public:
  struct Group {
    std::string_view heading;
    std::vector<OptionRow<Settings>> rows;
  };
  OptionTable(std::initializer_list<Group> groups) {
    for (const Group& group : groups) {
      for (const OptionRow<Settings>& row : group.rows) {
        options_.push_back(row.option);
        options_.back().group = group.heading;
        stores_.push_back(row.store);
      }
    }
  }

  std::span<const Option> options() const { return options_; }

  // Stores a value of one of options(). A failure is a sentence: "--nnodes 'x': give N or ...".
  Result<void> store(const OptionValue& value, Settings& settings) const {
    const auto& store = stores_[static_cast<std::size_t>(value.option - options_.data())];
    if (!store) return {};
    const Result<void> stored = store(value.text, settings);
    if (stored) return stored;
    return usage(value.source + " " + quoted_value(value.text) + ": " + stored.error().context);
  }

  // The same for several; an empty text counts as none.
  Result<void> store(std::span<const OptionValue> values, Settings& settings) const {
    for (const OptionValue& value : values) {
      if (value.text.empty()) continue;
      if (const Result<void> stored = store(value, settings); !stored) return stored;
    }
    return {};
  }

 private:
  std::vector<Option> options_;
  std::vector<typename OptionRow<Settings>::Store> stores_;
};

// A member of a member: inner(&Options::output, &OutputChoice::tee).
template <class Outer, class Middle, class Inner>
auto inner(Middle Outer::*outer, Inner Middle::*member) {
  return [=](Outer& settings) -> Inner& { return settings.*outer.*member; };
}

// A command of a program, such as "status" of ddprunctl.
struct CommandSpec {
  std::string_view name;
  std::string_view help;
  std::span<const Option> options;
  bool until_dashes = false;  // Behind "--" follows a command line of the program itself.
};

// A program for command_line.h and completion.h.
struct ProgramSpec {
  std::string name;              // As its messages call it: "ddprun doctor".
  std::string_view description;  // Opens the help.
  std::string_view footer;       // Ends it.
  std::span<const Option> options;
  std::vector<CommandSpec> commands = {};
  std::string version = {};     // What --version prints, if there is such an option.
  bool starts_program = false;  // PROGRAM and its arguments end the command line.
  bool both_spellings = true;   // --token_file beside --token-file.
  bool last_counts = true;      // If a value is given twice; else that is an error.
};

}  // namespace ddprun
