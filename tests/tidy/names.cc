// How enumerators are named, and types that share a name.

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tests/tidy/rules.h"

namespace ddprun::tidy {
namespace {

// What a brace at namespace scope opens.
struct Scope {
  bool is_namespace = false;
  std::string name;  // Of a namespace; empty: it has none, or it is none.
};

std::string joined(const std::vector<Scope>& scopes) {
  std::string text;
  for (const Scope& scope : scopes) text += scope.name + "::";
  return text;
}

// What is linked with each other.
const std::vector<std::set<std::string>> kPrograms = {{"common", "rendezvous", "agent", "launcher"},
                                                      {"common", "worker_sdk"}};

std::string last_name(const std::string& type) {
  const std::size_t colons = type.rfind("::");
  return colons == std::string::npos ? type : type.substr(colons + 2);
}

// The file of each type.
std::map<std::string, std::string> types_below(const std::set<std::string>& folders,
                                               const std::map<std::string, std::string>& files) {
  std::map<std::string, std::string> types;
  for (const auto& [path, text] : files) {
    const bool wraps = path.starts_with("worker_sdk/torch/");
    if (wraps || !folders.contains(path.substr(0, path.find('/')))) continue;
    for (const std::string& type : types_in(text)) types.try_emplace(type, path);
  }
  return types;
}

bool is_public(const std::string& path) {
  return path.starts_with("worker_sdk/include/") || path.starts_with("worker_sdk/torch/");
}

}  // namespace

std::vector<std::string> complaints_about_enumerators(const std::string& path,
                                                      const std::string& text) {
  static const std::regex kEnum(R"(\benum class\s[^{;]*\{([^}]*)\})");
  static const std::regex kName(R"(([A-Za-z_]\w*)[^,]*)");
  static const std::regex kSnake("[a-z][a-z0-9_]*");
  static const std::regex kPascal("k[A-Z0-9].*");
  if (path.starts_with("tests/") || path.starts_with("bench/") || path.starts_with("examples/")) {
    return {};
  }
  const std::string code = without_words(text);
  std::vector<std::string> complaints;
  for (std::sregex_iterator each(code.begin(), code.end(), kEnum), end; each != end; ++each) {
    const std::string body = (*each)[1];
    if (body.find('#') != std::string::npos) continue;  // From a list of macros.
    for (std::sregex_iterator one(body.begin(), body.end(), kName); one != end; ++one) {
      const std::string name = (*one)[1];
      if (std::regex_match(name, is_public(path) ? kSnake : kPascal)) continue;
      complaints.push_back(path + ": enumerator " + name + ": public ones are snake_case, " +
                           "all others kPascalCase");
    }
  }
  return complaints;
}

std::vector<std::string> types_in(const std::string& text) {
  static const std::regex kNamespace(R"(\bnamespace\s*([\w:]*)\s*$)");
  static const std::regex kType(R"(\b(?:struct|class|union|enum(?:\s+class)?)\s+)"
                                R"((?:\[\[[^\]]*\]\]\s*|alignas\([^)]*\)\s*)*)"
                                R"(([A-Za-z_]\w*(?:::\w+)*)\s*(?:final\s*)?(?::(?!:)[^(){}]*)?$)");
  const std::string code = without_words(text);
  std::vector<std::string> types;
  std::vector<Scope> scopes;
  std::size_t begun = 0;  // What stands before a brace, since the last one or semicolon.
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i] == '}' && !scopes.empty()) scopes.pop_back();
    if (code[i] == '{') {
      const std::string before = code.substr(begun, i - begun);
      const bool named = std::ranges::all_of(
          scopes, [](const Scope& scope) { return scope.is_namespace && !scope.name.empty(); });
      std::smatch match;
      if (std::regex_search(before, match, kNamespace)) {
        scopes.push_back({true, match[1]});
      } else {
        if (named && std::regex_search(before, match, kType)) {
          types.push_back(joined(scopes) + match[1].str());
        }
        scopes.push_back({});
      }
    }
    if (code[i] == '{' || code[i] == '}' || code[i] == ';') begun = i + 1;
  }
  return types;
}

std::vector<std::string> complaints_about_doubles(
    const std::map<std::string, std::string>& linked) {
  std::vector<std::string> complaints;
  std::map<std::string, std::string> first;  // By type.
  for (const auto& [path, text] : linked) {
    for (const std::string& type : types_in(text)) {
      const auto [known, is_new] = first.try_emplace(type, path);
      if (is_new || known->second == path) continue;
      complaints.push_back(path + ": " + type + " is defined in " + known->second + ", too");
    }
  }
  return complaints;
}

std::vector<std::string> complaints_about_namesakes(
    const std::map<std::string, std::string>& files) {
  std::set<std::string> complaints;
  for (const auto& folders : kPrograms) {
    const std::map<std::string, std::string> types = types_below(folders, files);
    std::map<std::string, std::string> first;  // By last name.
    for (const auto& [type, path] : types) {
      const std::size_t colons = type.rfind("::");
      const bool is_part = colons != std::string::npos && types.contains(type.substr(0, colons));
      if (is_part) continue;  // The name has its owner: ProcessGroup::Impl.
      const auto [known, is_new] = first.try_emplace(last_name(type), type);
      if (is_new) continue;
      complaints.insert(path + ": " + type + " has the name of " + known->second);
    }
  }
  return {complaints.begin(), complaints.end()};
}

}  // namespace ddprun::tidy
