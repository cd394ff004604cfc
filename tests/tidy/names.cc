// How enumerators are named.

#include <regex>
#include <sstream>

#include "tests/tidy/rules.h"

namespace ddprun::tidy {
namespace {

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

}  // namespace ddprun::tidy
