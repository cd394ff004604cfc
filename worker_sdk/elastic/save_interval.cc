#include "worker_sdk/elastic/save_interval.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ddprun::elastic {
namespace {

constexpr std::size_t kSteps = 64, kSaves = 8;

void add(std::deque<std::chrono::nanoseconds>& latest, std::chrono::nanoseconds time,
         std::size_t most) {
  latest.push_back(time);
  if (latest.size() > most) latest.pop_front();
}

}  // namespace

void SaveInterval::step_took(std::chrono::nanoseconds time) { add(steps_, time, kSteps); }
void SaveInterval::save_took(std::chrono::nanoseconds time) { add(saves_, time, kSaves); }

// A save that has waited for a busy machine must not make the next ones rare, so the shortest of
// the latest counts; of the steps the median.
std::int64_t SaveInterval::proposal() const {
  if (fixed_ > 0) return fixed_;
  if (saves_.empty() || steps_.empty()) return 0;
  std::vector<std::chrono::nanoseconds> steps(steps_.begin(), steps_.end());
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  const auto step = std::max<std::int64_t>(middle->count(), 1);
  const auto save = std::min_element(saves_.begin(), saves_.end())->count();
  const double wanted = std::ceil(static_cast<double>(save) / static_cast<double>(step) / kCost);
  return static_cast<std::int64_t>(std::clamp<double>(wanted, 1, static_cast<double>(kMost)));
}

std::int64_t SaveInterval::next(std::int64_t committed, std::int64_t agreed) const {
  if (fixed_ > 0) return (committed / fixed_ + 1) * fixed_;
  return committed + (agreed > 0 ? std::min(agreed, kMost) : kFirst);
}

std::int64_t SaveInterval::first(std::int64_t committed, std::int64_t agreed) const {
  constexpr std::int64_t kSooner = 10;
  if (fixed_ > 0 || agreed <= 0) return next(committed, agreed);
  return committed + std::clamp(agreed / kSooner, std::min(agreed, kFirst), kMost);
}

}  // namespace ddprun::elastic
