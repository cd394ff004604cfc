// functions_in() and without_words() of rules.h: a very small reader of C++.

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

bool has_word(const std::string& text, const std::string& word) {
  const auto is_letter = [&](std::size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

// What stands before an opening brace decides what the braces hold.
enum class Holds { kDeclarations, kBody, kValues };

Holds held_after(const std::string& before) {
  const std::size_t parenthesis = before.find('(');
  if (parenthesis != std::string::npos) return Holds::kBody;
  for (const char* word : {"namespace", "class", "struct", "union", "extern"}) {
    if (has_word(before, word) && !has_word(before, "enum")) return Holds::kDeclarations;
  }
  return Holds::kValues;
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

std::vector<Function> functions_in(const std::string& text) {
  std::vector<Function> functions;
  std::string before;  // Since the last statement or block among declarations.
  int line = 1, depth = 0;
  bool in_body = false;
  bool at_line_start = true, in_directive = false;
  for (const char letter : without_words(text)) {
    if (letter == '\n') {
      ++line;
      at_line_start = true;
      in_directive = false;
    }
    if (letter == '#' && at_line_start) in_directive = true;
    if (!std::isspace(static_cast<unsigned char>(letter))) at_line_start = false;
    if (in_directive) continue;
    if (depth > 0) {  // Inside a body or a list of values; only its end is of interest.
      depth += letter == '{' ? 1 : letter == '}' ? -1 : 0;
      if (depth > 0) continue;
      if (in_body) functions.back().lines = line - functions.back().line;
      before.clear();
    } else if (letter == '{') {
      const Holds holds = held_after(before);
      in_body = holds == Holds::kBody;
      if (holds != Holds::kDeclarations) depth = 1;
      if (in_body) functions.push_back({line, 0});
      before.clear();
    } else if (letter == ';' || letter == '}') {
      before.clear();
    } else {
      before += letter;
    }
  }
  return functions;
}

}  // namespace ddprun::tidy
