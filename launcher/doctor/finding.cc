#include "launcher/doctor/finding.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace ddprun::doctor {
namespace {

std::string scaled(std::int64_t bytes, double step, const std::array<const char*, 5>& units) {
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= step && unit + 1 < units.size()) {
    amount /= step;
    ++unit;
  }
  return number_text(amount) + " " + units[unit];
}

}  // namespace

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string bytes_text(std::int64_t bytes) {
  return scaled(bytes, 1000, {"B", "kB", "MB", "GB", "TB"});
}

std::string limit_text(std::int64_t bytes) {
  if (bytes < 0) return "unlimited";
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string number_text(double number) {
  char text[32];
  const double size = std::abs(number);
  const int decimals = size >= 99.95 || size == std::floor(size) ? 0 : size >= 0.1 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

std::string ms_text(double milliseconds) {
  if (std::abs(milliseconds) >= 1000) return number_text(milliseconds / 1000) + " s";
  return number_text(milliseconds) + " ms";
}

namespace {

struct Named {
  std::string_view name;
  int exit_code;
};

// By Status.
constexpr std::array<Named, 5> kStatuses = {
    {{"ok", 0}, {"skipped", 0}, {"warn", 1}, {"unknown", 3}, {"fail", 2}}};

}  // namespace

std::string_view to_string(Status status) {
  return kStatuses[static_cast<std::size_t>(status)].name;
}

int exit_code_of(Status status) { return kStatuses[static_cast<std::size_t>(status)].exit_code; }

}  // namespace ddprun::doctor
