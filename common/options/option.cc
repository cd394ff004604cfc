#include "common/options/option.h"

#include <algorithm>
#include <cctype>

#include "common/text/display.h"
#include "common/text/figures.h"

namespace ddprun {

Failure usage(std::string sentence) { return {Errc::kBadOption, std::move(sentence)}; }

std::string quoted_value(std::string_view text) {
  constexpr std::size_t kShownMax = 80;
  return "'" + plain_line(first_columns(text, kShownMax)) +
         (text_columns(text) > kShownMax ? "...'" : "'");
}

Result<int> parse_integer(std::string_view text, int min, int max) {
  const auto value = as_number<int>(text);
  if (value && *value >= min && *value <= max) return *value;
  return usage("give a whole number from " + std::to_string(min) + " to " + std::to_string(max));
}

Result<bool> parse_switch(std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  return usage("give 1 or 0");
}

Result<std::string> any_text(std::string_view text) { return std::string(text); }

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
