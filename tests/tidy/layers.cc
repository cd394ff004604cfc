#include "tests/tidy/layers.h"

#include <algorithm>
#include <sstream>

namespace ddprun::tidy {
namespace {

bool covers(const std::string& name, const std::string& stem) {
  return stem == name || stem.starts_with(name + "/") || stem.starts_with(name + "_");
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
    Module module;
    for (std::string word; words >> word;) {
      if (word == "pure") {
        module.pure = true;
      } else if (word == "std") {
        module.std_only = true;
      } else {
        for (const std::string& name : expand_braces(word)) module.may_include.insert(name);
      }
    }
    for (const std::string& name : expand_braces(names)) modules_[name] = module;
  }
}

std::string Layers::module_of(const std::string& path) const {
  const std::string stem = path.substr(0, path.rfind('.'));
  std::string found;
  for (const auto& [name, module] : modules_) {
    if (covers(name, stem) && name.size() > found.size()) found = name;
  }
  return found;
}

std::string Layers::objection(const std::string& from, const std::string& path) const {
  const std::string target = module_of(path);
  if (target.empty()) return "no line of layers.txt covers " + path;
  if (target == from) return "";
  const Module& module = at(from);
  const auto allows = [&](const std::string& name) {
    return target == name || target.starts_with(name + "/");
  };
  if (std::none_of(module.may_include.begin(), module.may_include.end(), allows)) {
    return from + " may not include " + target;
  }
  // The headers of worker_sdk/include hold no code that could break purity.
  const bool harmless = at(target).pure || at(target).std_only;
  if (module.pure && !harmless) return from + " is pure and " + target + " is not";
  return "";
}

}  // namespace ddprun::tidy
