#include "agent/lines/line_prefix.h"

namespace ddprun::agent {

std::string expand_line_prefix(std::string_view line_template, const LinePrefixFacts& facts) {
  const std::map<std::string_view, std::string> values = {
      {"role_name", facts.role_name},
      {"rank", std::to_string(facts.rank)},
      {"local_rank", std::to_string(facts.local_rank)},
      {"hostname", facts.hostname},
  };
  std::string prefix;
  while (!line_template.empty()) {
    const std::size_t dollar = std::min(line_template.find("${"), line_template.size());
    prefix.append(line_template.substr(0, dollar));
    line_template.remove_prefix(dollar);
    const std::size_t close = line_template.find('}');
    if (close == std::string_view::npos) return prefix.append(line_template);
    const auto value = values.find(line_template.substr(2, close - 2));
    prefix.append(value == values.end() ? std::string(line_template.substr(0, close + 1))
                                        : value->second);
    line_template.remove_prefix(close + 1);
  }
  return prefix;
}

}  // namespace ddprun::agent
