#pragma once
// A text that is a number and nothing else. Pure.

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddprun {

// The number that all of `text` is; nothing if it is anything else, such as one with a blank or a
// plus sign, or does not fit.
template <class Number>
std::optional<Number> as_number(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

// The same of digits to another base, without "0x".
template <std::integral Number>
std::optional<Number> as_number(std::string_view text, int base) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value, base);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

}  // namespace ddprun
