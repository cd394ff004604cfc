#include "common/ledger/time_parts.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "common/assert.h"

namespace ddprun {
namespace {

struct Row {
  const char* name;
  const char* label;
};

constexpr Row kRows[] = {
    {"rendezvous", "rendezvous"}, {"startup", "start-up"},  {"outside", "outside"},
    {"forward", "forward"},       {"backward", "backward"}, {"transfer", "transfer"},
    {"waiting", "waiting"},       {"steps", "steps"},       {"checkpoint", "checkpoint"},
    {"lost", "lost work"},        {"restart", "restart"},   {"spare", "idle spare"},
    {"gone", "not in the run"},   {"unknown", "unknown"},   {"end", "end"}};
static_assert(std::size(kRows) == kTimeParts);

double ratio(TimeParts::Time part, TimeParts::Time whole) {
  return whole.count() > 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count())
                           : 0;
}

}  // namespace

const char* name_of(TimePart part) { return kRows[static_cast<std::size_t>(part)].name; }
const char* label_of(TimePart part) { return kRows[static_cast<std::size_t>(part)].label; }

bool is_kept(TimePart part) { return part >= TimePart::kOutside && part <= TimePart::kSteps; }

TimeParts::Time TimeParts::sum() const {
  return std::accumulate(times.begin(), times.end(), Time{0});
}

TimeParts::Time TimeParts::kept() const {
  Time sum{0};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (is_kept(static_cast<TimePart>(i))) sum += times[i];
  }
  return sum;
}

void TimeParts::add(const TimeParts& more) {
  // All parts of such a sum together are still a number, whatever agents have claimed.
  constexpr Time kMost{std::int64_t{1} << 58};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    times[i] = std::min(times[i] + std::min(more.times[i], kMost), kMost);
  }
}

std::string to_text(const TimeParts& parts) {
  std::string text;
  std::size_t commas = 0;
  for (std::size_t i = 0; i < kTimeParts; ++i, ++commas) {
    DDPRUN_ASSERT(parts.times[i].count() >= 0);
    if (parts.times[i].count() == 0) continue;
    text.append(commas, ',');
    commas = 0;
    text += std::to_string(parts.times[i].count());
  }
  return text;
}

std::optional<TimeParts> parse_time_parts(std::string_view text) {
  constexpr std::size_t kFieldsMax = 64;
  TimeParts parts;
  for (std::size_t i = 0; !text.empty(); ++i) {
    if (i == kFieldsMax) return std::nullopt;
    const std::size_t comma = text.find(',');
    const std::string_view field = text.substr(0, comma);
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool whole = error == std::errc{} && stop == field.data() + field.size();
    if (!field.empty() && !whole) return std::nullopt;
    if (value < 0 || value > kTimeMax.count()) return std::nullopt;
    constexpr auto kUnknown = static_cast<std::size_t>(TimePart::kUnknown);
    parts.times[i < kTimeParts ? i : kUnknown] += TimeParts::Time(value);
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return parts;
}

TimeParts::Time LedgerTotals::in_run() const {
  return parts.sum() - parts[TimePart::kSpare] - parts[TimePart::kGone];
}

double LedgerTotals::share(TimePart part) const { return ratio(parts[part], in_run()); }

bool LedgerTotals::knows_goodput() const {
  return parts.kept().count() > 0 || parts[TimePart::kLost].count() > 0;
}

double LedgerTotals::goodput() const { return ratio(parts.kept(), in_run()); }

}  // namespace ddprun
