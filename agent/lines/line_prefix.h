#pragma once
// What stands before each line of a worker. Pure. Used by Output.

#include <map>
#include <string>
#include <string_view>

namespace ddprun::agent {

constexpr std::string_view kDefaultLinePrefix = "[${role_name}${rank}]:";

struct LinePrefixFacts {
  std::string role_name;
  int rank = 0;
  int local_rank = 0;
  std::string hostname;
};

// Replaces ${role_name} ${rank} ${local_rank} ${hostname}; anything else stays as it is.
std::string expand_line_prefix(std::string_view line_template, const LinePrefixFacts& facts);

}  // namespace ddprun::agent
