// without_words() of rules.h: blanks the comments and literals of C++ source.

#include <cctype>

#include "tests/tidy/rules.h"

namespace ddprun::tidy {
namespace {

// The end of the comment or literal that begins at `at`, or `at` if none begins there.
std::size_t end_of_words(const std::string& text, std::size_t at) {
  const auto after = [&](const std::string& mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == std::string::npos ? text.size() : found + mark.size();
  };
  if (text.compare(at, 2, "//") == 0) return after("\n", at) - 1;
  if (text.compare(at, 2, "/*") == 0) return after("*/", at + 2);
  if (text.compare(at, 2, "R\"") == 0) {
    const std::size_t open = text.find('(', at);
    if (open == std::string::npos) return text.size();
    return after(")" + text.substr(at + 2, open - at - 2) + "\"", open);
  }
  const char quote = text[at];
  const bool separates_digits =
      quote == '\'' && at > 0 && std::isxdigit(static_cast<unsigned char>(text[at - 1]));
  if ((quote != '"' && quote != '\'') || separates_digits) return at;
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote || text[i] == '\n') {
      return i + 1;
    }
  }
  return text.size();
}

}  // namespace

std::string without_words(const std::string& text) {
  std::string code = text;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_words(text, at);
    for (std::size_t i = at; i < end; ++i) {
      if (text[i] != '\n') code[i] = ' ';
    }
    at = end == at ? at + 1 : end;
  }
  return code;
}

}  // namespace ddprun::tidy
