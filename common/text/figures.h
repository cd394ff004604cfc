#pragma once
// Figures as ddprun's screens write them: three significant digits, one blank before the unit, two
// units of time at most. And texts that are a number and nothing else, as it reads them. Pure.

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/time.h"

namespace ddprun {

std::string grouped(std::int64_t number);      // "5,249"
std::string percent_text(double share);        // "93.2 %"
std::string clock_text(double seconds);        // "1:41:40": hours, minutes, seconds.
std::string rate_text(double value);           // "1.38", "12.5", "230": such as steps per second.
std::string memory_text(std::uint64_t bytes);  // "2.41 GB", "310 MB", "0.10 MB": powers of ten.
// "4 ms", "840 ms", "24.6 s", "13 min 4 s", "2 h 14 min".
std::string took_text(std::chrono::microseconds time);
// Of several ranks together: "5,251 rank-s", "12.4 rank-h".
std::string rank_time_text(std::chrono::microseconds time);

// Counts, numbers and durations in words: "1 node", "3 nodes", "2.5 s".
std::string number_of(int n, const char* thing);
std::string seconds_text(Milliseconds duration);

// "0-2, 5" for {0, 1, 2, 5}; `numbers` are in order.
std::string ranges_text(const std::vector<int>& numbers);

// printf into a string, cut at 511 characters: for lines of tables and of JSON.
[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

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
