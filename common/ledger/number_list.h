#pragma once
// Whole numbers from 0 to kTimeMax as text: "3,1200,0". For small records that travel in one field.
// Pure.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/time_parts.h"

namespace ddprun {

inline std::string number_list(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + ",";
  if (!text.empty()) text.pop_back();
  return text;
}

// Nothing: that is not such a text, or has not `count` numbers.
inline std::optional<std::vector<std::int64_t>> parse_number_list(std::string_view text,
                                                                  std::size_t count) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || number < 0 || number > kTimeMax.count()) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    const bool is_last = i + 1 == count;
    if (is_last ? !text.empty() : !text.starts_with(',')) return std::nullopt;
    if (!is_last) text.remove_prefix(1);
  }
  return numbers;
}

}  // namespace ddprun
