#pragma once
// The text of an option -> its typed value: the parsers that every program uses. The failure of a
// parser only describes what is allowed ("give a whole number from 0 to 9"); the table of options
// puts the option and the offending text before it. Pure.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"

namespace ddprun {

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

}  // namespace ddprun
