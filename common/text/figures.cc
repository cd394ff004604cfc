#include "common/text/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace ddprun {
namespace {

std::string tenths(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

}  // namespace

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string percent_text(double share) { return tenths(100 * share) + " %"; }

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(std::clamp(seconds, 0.0, 1e9));
  char text[64];
  std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  return text;
}

std::string rate_text(double value) {
  char text[64];
  const int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f", digits, std::clamp(value, 0.0, 1e9));
  return text;
}

std::string memory_text(std::uint64_t bytes) {
  constexpr double kMega = 1e6, kGiga = 1e9;
  const auto size = static_cast<double>(bytes);
  return size >= kGiga ? rate_text(size / kGiga) + " GB" : rate_text(size / kMega) + " MB";
}

std::string took_text(std::chrono::microseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds < 0.9995) return std::to_string(std::llround(1000 * seconds)) + " ms";
  if (seconds < 99.95) return tenths(seconds) + " s";
  const std::int64_t whole = std::llround(seconds);
  constexpr std::int64_t kHour = 3600;
  if (whole < kHour) {
    const std::int64_t rest = whole % 60;
    return std::to_string(whole / 60) + " min" + (rest ? " " + std::to_string(rest) + " s" : "");
  }
  const std::int64_t minutes = (whole + 30) / 60;
  const std::int64_t rest = minutes % 60;
  return grouped(minutes / 60) + " h" + (rest ? " " + std::to_string(rest) + " min" : "");
}

std::string rank_time_text(std::chrono::microseconds time) {
  constexpr double kHours = 7200;
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds < 10) return tenths(seconds) + " rank-s";
  if (seconds < kHours) return grouped(std::llround(seconds)) + " rank-s";
  return tenths(seconds / 3600) + " rank-h";
}

std::string number_of(int n, const char* thing) {
  return std::to_string(n) + " " + thing + (n == 1 ? "" : "s");
}

std::string seconds_text(Milliseconds duration) {
  const auto tenths = duration.count() / 100;
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10 != 0) text += "." + std::to_string(tenths % 10);
  return text + " s";
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) ++i;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[first]);
    if (i > first) text += "-" + std::to_string(numbers[i]);
  }
  return text;
}

}  // namespace ddprun
