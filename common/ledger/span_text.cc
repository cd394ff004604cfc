#include "common/ledger/span_text.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace ddprun {
namespace {

constexpr std::size_t kMost = PlaceLedger::kSpansMax + 4;  // The present may be several.

std::optional<TimeSpan> parse_span(std::string_view text) {
  std::array<std::int64_t, 3> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, numbers[i]);
    if (error != std::errc{} || numbers[i] < 0 || numbers[i] > kTimeMax.count()) return {};
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    const bool last = i + 1 == numbers.size();
    if (last ? !text.empty() : !text.starts_with(',')) return {};
    if (!last) text.remove_prefix(1);
  }
  const bool known = numbers[0] < static_cast<std::int64_t>(kTimeParts);
  if (numbers[2] < numbers[1]) return {};
  return TimeSpan{known ? static_cast<TimePart>(numbers[0]) : TimePart::kUnknown,
                  TimeParts::Time(numbers[1]), TimeParts::Time(numbers[2])};
}

}  // namespace

std::string to_text(const std::vector<TimeSpan>& spans) {
  std::string text;
  for (const TimeSpan& span : spans) {
    text += (text.empty() ? "" : ";") + std::to_string(static_cast<int>(span.part)) + "," +
            std::to_string(span.from.count()) + "," + std::to_string(span.until.count());
  }
  return text;
}

std::optional<std::vector<TimeSpan>> parse_time_spans(std::string_view text) {
  std::vector<TimeSpan> spans;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const auto span = parse_span(text.substr(0, end));
    if (!span || spans.size() == kMost) return std::nullopt;
    spans.push_back(*span);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return spans;
}

}  // namespace ddprun
