#pragma once
// layers.txt read into memory: which module a file belongs to and what that module may include.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ddprun::tidy {

struct Module {
  std::set<std::string> may_include;  // Modules, or folders of modules.
  bool pure = false;
  bool std_only = false;
};

class Layers {
 public:
  // `text` is the content of a layers.txt.
  explicit Layers(const std::string& text);

  // The longest module name that covers `path`, which is relative to the source root; "" if there
  // is none.
  std::string module_of(const std::string& path) const;

  // Empty, or why `from` must not include the file `path`.
  std::string objection(const std::string& from, const std::string& path) const;

  const Module& at(const std::string& name) const { return modules_.at(name); }

 private:
  std::map<std::string, Module> modules_;
};

// "a/{b,c}" -> "a/b", "a/c".
std::vector<std::string> expand_braces(const std::string& word);

}  // namespace ddprun::tidy
