#include "agent/workers/learned_names.h"

#include <algorithm>
#include <cctype>

namespace ddprun::agent {
namespace {

constexpr std::string_view kFirstLine = "ddprun preload 2";
constexpr std::string_view kWhole = ".";
constexpr std::size_t kNameMax = 200;
constexpr std::size_t kVariablesMax = 100;
constexpr std::size_t kSlowMax = 100;
constexpr std::size_t kSecondsMax = 12;  // Digits.

bool is_name(std::string_view text) {
  const auto fits = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '.';
  };
  return !text.empty() && text.size() <= kNameMax && text.front() != '.' &&
         std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text, fits);
}

// "torch 2.31".
bool is_slow(std::string_view text) {
  const std::size_t blank = text.find(' ');
  if (blank == std::string_view::npos || !is_name(text.substr(0, blank))) return false;
  const std::string_view seconds = text.substr(blank + 1);
  const auto fits = [](unsigned char sign) { return std::isdigit(sign) != 0 || sign == '.'; };
  return !seconds.empty() && seconds.size() <= kSecondsMax && std::ranges::all_of(seconds, fits);
}

// Cuts the first line off; false: none ends.
bool take_line(std::string_view& text, std::string_view& line) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

LearnedNames LearnedNames::parse(std::string_view text) {
  LearnedNames list;
  std::string_view line;
  if (!take_line(text, line) || line != kFirstLine || !take_line(text, line)) return list;
  while (take_line(text, line) && list.known_.size() < kNamesMax) {
    const bool is_forbidden = line.starts_with('!');
    if (line == kWhole) list.whole_ = true;
    if (line.starts_with('=')) list.add_variable(line.substr(1));
    if (line.starts_with('~') && is_slow(line.substr(1)) && list.slow_.size() < kSlowMax) {
      list.slow_.emplace_back(line.substr(1));
    }
    const std::string name(is_forbidden ? line.substr(1) : line);
    if (!is_name(name)) continue;
    const bool is_new = list.known_.insert(name).second;
    if (is_forbidden) {
      std::erase(list.names_, name);
      list.forbidden_.push_back(name);
    } else if (is_new) {
      list.names_.push_back(name);
    }
  }
  return list;
}

void LearnedNames::add_variable(std::string_view name) {
  const bool is_known = std::ranges::find(variables_, name) != variables_.end();
  if (is_name(name) && !is_known && variables_.size() < kVariablesMax)
    variables_.emplace_back(name);
}

std::string LearnedNames::text(std::string_view program) const {
  std::string text(kFirstLine);
  text.append("\n");
  for (const char letter : program) text.push_back(letter == '\n' ? ' ' : letter);
  text.append("\n");
  for (const std::string& name : names_) text.append(name).append("\n");
  for (const std::string& name : forbidden_) text.append("!").append(name).append("\n");
  for (const std::string& name : variables_) text.append("=").append(name).append("\n");
  for (const std::string& one : slow_) text.append("~").append(one).append("\n");
  if (whole_) text.append(kWhole).append("\n");
  return text;
}

std::size_t LearnedNames::add(std::string_view notes) {
  std::vector<std::string> noted;
  std::unordered_set<std::string> failed;
  std::string_view line;
  while (take_line(notes, line)) {
    if (line.starts_with('-')) {
      failed.emplace(line.substr(1));
    } else if (line.starts_with('=')) {
      add_variable(line.substr(1));
    } else if (is_name(line)) {
      noted.emplace_back(line);
    }
  }
  const std::size_t before = names_.size();
  for (std::string& name : noted) {
    if (known_.size() >= kNamesMax) break;
    if (failed.contains(name) || known_.contains(name)) continue;
    known_.insert(name);
    names_.push_back(std::move(name));
  }
  return names_.size() - before;
}

bool NotesWatch::look(std::size_t bytes) {
  if (bytes != seen_) {
    seen_ = bytes;
    return false;
  }
  if (bytes == read_) {
    interval_ = std::min(2 * interval_, kLast);
    return false;
  }
  read_ = bytes;
  return true;
}

}  // namespace ddprun::agent
