#pragma once
// Parses a command line written as one would type it, for the tests of launcher/.

#include <sstream>
#include <string>
#include <vector>

#include "launcher/options/options.h"

namespace ddprun::launcher {

inline Result<ParseOutcome> parse_words(const std::vector<std::string>& words,
                                        const Environment& environment = {}) {
  std::vector<const char*> argv = {"ddprun"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse(static_cast<int>(argv.size()), argv.data(), environment);
}

// Words are separated by spaces; there is no quoting.
inline Result<ParseOutcome> parse_line(const std::string& line,
                                       const Environment& environment = {}) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return parse_words(words, environment);
}

// The options of a line that must be right; "" + the error of one that must be wrong.
inline Options options_of(const std::string& line, const Environment& environment = {}) {
  return std::get<Options>(parse_line(line, environment).value());
}

inline std::string error_of(const std::string& line, const Environment& environment = {}) {
  const Result<ParseOutcome> outcome = parse_line(line, environment);
  return outcome ? "(no error)" : outcome.error().context;
}

}  // namespace ddprun::launcher
