#include "tests/tidy/layers.h"

#include <algorithm>
#include <regex>
#include <sstream>

namespace ddprun::tidy {
namespace {

// What `path` is without its extension.
std::string stem_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// The comment before the first line of code; "#pragma once" may stand before it.
std::string opening_comment(const std::string& text) {
  std::istringstream lines(text);
  std::string comment;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("//")) {
      comment += line.substr(2);
    } else if (!line.starts_with("#pragma")) {
      break;
    }
  }
  return comment;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& word) {
  const std::size_t open = word.find('{');
  const std::size_t close = word.find('}');
  if (open == std::string::npos || close == std::string::npos) return {word};
  std::vector<std::string> words;
  std::istringstream choices(word.substr(open + 1, close - open - 1));
  for (std::string choice; std::getline(choices, choice, ',');) {
    words.push_back(word.substr(0, open) + choice + word.substr(close + 1));
  }
  return words;
}

Layers::Layers(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string names, colon;
    words >> names >> colon;
    Room room;
    for (std::string word; words >> word;) {
      if (word == "pure") {
        room.pure = true;
      } else if (word == "flat") {
        room.flat = true;
      } else if (word == "std") {
        room.std_only = true;
      } else {
        for (const std::string& name : expand_braces(word)) room.may_include.insert(name);
      }
    }
    for (const std::string& name : expand_braces(names)) rooms_[name] = room;
  }
}

std::string Layers::room_of(const std::string& path) const {
  const std::string own = folder_of(path);
  for (std::string folder = own; !folder.empty(); folder = folder_of(folder)) {
    const auto room = rooms_.find(folder);
    if (room != rooms_.end() && (folder == own || !room->second.flat)) return folder;
  }
  return "";
}

void Layers::note(const std::string& path, const std::string& text) {
  const std::string name = path.ends_with(".h") ? stem_of(path) : path;
  if (path.ends_with(".h")) headers_.insert(name);
  static const std::regex kClaim("\\bPure[.;:]");
  if (std::regex_search(opening_comment(text), kClaim)) claims_.insert(name);
}

bool Layers::pure(const std::string& path) const {
  const std::string room = room_of(path);
  // The headers of worker_sdk/include hold no code that could break purity.
  if (!room.empty() && (at(room).pure || at(room).std_only)) return true;
  if (claims_.contains(path)) return true;
  std::string stem = stem_of(path);
  while (!headers_.contains(stem)) {
    const std::size_t end = stem.rfind('_');
    if (end == std::string::npos || end < stem.rfind('/')) return false;
    stem.resize(end);
  }
  return claims_.contains(stem);
}

std::string Layers::objection(const std::string& from, const std::string& path) const {
  const std::string room = room_of(from);
  const std::string target = room_of(path);
  if (target.empty()) return "no line of layers.txt covers " + path;
  const auto allows = [&](const std::string& name) {
    return target == name || target.starts_with(name + "/");
  };
  if (target != room &&
      std::none_of(at(room).may_include.begin(), at(room).may_include.end(), allows)) {
    return room + " may not include " + target;
  }
  if (pure(from) && !pure(path)) return from + " is pure and " + path + " is not";
  return "";
}

}  // namespace ddprun::tidy
