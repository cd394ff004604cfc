#include "common/options/option.h"

#include <algorithm>
#include <cctype>

namespace ddprun {

const Option* find_option(std::span<const Option> options, std::string_view dashed_name) {
  const auto found = std::ranges::find(options, dashed_name, &Option::name);
  return found == options.end() ? nullptr : &*found;
}

std::string underscored(std::string_view dashed_name) {
  std::string text(dashed_name);
  std::ranges::replace(text, '-', '_');
  return text;
}

std::string pet_variable(std::string_view dashed_name) {
  std::string text = underscored(dashed_name);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return "PET_" + text;
}

}  // namespace ddprun
