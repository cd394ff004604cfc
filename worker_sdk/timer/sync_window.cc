#include "worker_sdk/timer/sync_window.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

using Duration = std::chrono::nanoseconds;

constexpr double kLateAtLeastUs = 1000;
constexpr double kLateShare = 0.05;

double us(Duration d) { return static_cast<double>(d.count()) / 1e3; }
Duration from_us(double value) { return Duration(static_cast<std::int64_t>(value * 1e3)); }

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<std::size_t>(rank)];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double whole(const RankPhases& r) { return std::accumulate(r.begin(), r.begin() + kComm, 0.0); }

// The last rank to arrive: its collectives were the shortest.
std::size_t last_of(std::span<const RankPhases> ranks) {
  const auto last = std::min_element(ranks.begin(), ranks.end(),
                                     [](auto& a, auto& b) { return a[kComm] < b[kComm]; });
  return static_cast<std::size_t>(last - ranks.begin());
}

// The median of all ranks but `rank`.
double median_of_others(std::span<const RankPhases> ranks, int rank, std::size_t phase) {
  std::vector<double> others;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (static_cast<int>(r) != rank) others.push_back(ranks[r][phase]);
  }
  return median(std::move(others));
}

}  // namespace

std::optional<Straggler> find_straggler(std::span<const RankPhases> ranks) {
  if (ranks.size() < 2) return std::nullopt;
  double step = 0;
  for (const RankPhases& r : ranks) step = std::max(step, whole(r));
  const std::size_t last = last_of(ranks);
  const int rank = static_cast<int>(last);
  const double late = median_of_others(ranks, rank, kComm) - ranks[last][kComm];
  if (late < kLateAtLeastUs && late < kLateShare * step) return std::nullopt;

  Straggler result{.rank = rank, .steps = 1, .late = from_us(late), .worst = from_us(late)};
  double most = 0;
  for (std::size_t p = 0; p < kStepPhases; ++p) {
    const double lost = ranks[last][p] - median_of_others(ranks, rank, p);
    if (lost <= most) continue;
    most = lost;
    result.phase = static_cast<StepPhase>(p);
  }
  return result;
}

std::optional<Straggler> worst_straggler(std::span<const Straggler> late) {
  std::map<int, std::vector<Straggler>> by_rank;
  std::map<int, Duration> lost;
  for (const Straggler& s : late) {
    by_rank[s.rank].push_back(s);
    lost[s.rank] += s.late;
  }
  if (lost.empty()) return std::nullopt;
  const int rank = std::max_element(lost.begin(), lost.end(), [](auto& a, auto& b) {
                     return a.second < b.second;
                   })->first;
  Straggler result{.rank = rank, .steps = static_cast<int>(by_rank[rank].size())};
  std::map<StepPhase, Duration> phases;
  for (const Straggler& s : by_rank[rank]) {
    phases[s.phase] += s.late;
    if (phases[s.phase] > phases[result.phase]) result.phase = s.phase;
    if (s.late > result.worst) result.worst = s.late, result.step = s.step;
  }
  result.late = lost[rank] / result.steps;
  return result;
}

WindowTable::WindowTable(int world_size, std::size_t steps, std::size_t buckets)
    : world_(static_cast<std::size_t>(world_size)),
      steps_(steps),
      buckets_(buckets),
      values_(world_ * (steps * kRankPhases + buckets), 0) {}

std::size_t WindowTable::phases_at(std::size_t rank, std::size_t step) const {
  return rank * (steps_ * kRankPhases + buckets_) + step * kRankPhases;
}

std::size_t WindowTable::bucket_at(std::size_t rank, std::size_t bucket) const {
  return phases_at(rank, steps_) + bucket;
}

void WindowTable::put(int rank, const std::vector<StepTimes>& steps) {
  DDPRUN_ASSERT(steps.size() == steps_);
  const auto r = static_cast<std::size_t>(rank);
  for (std::size_t s = 0; s < steps_; ++s) {
    const StepTimes& t = steps[s];
    if (!t.known) continue;
    const Duration phases[kRankPhases] = {t.outside,   t.forward, t.backward, t.data,
                                          t.optimizer, t.exposed, t.comm()};
    for (std::size_t p = 0; p < kRankPhases; ++p) {
      values_[phases_at(r, s) + p] = static_cast<float>(us(phases[p]));
    }
  }
  for (std::size_t b = 0; b < buckets_; ++b) {
    std::vector<double> times;
    for (const StepTimes& t : steps) {
      if (t.known) times.push_back(us(t.buckets.at(b).comm));
    }
    if (!times.empty()) values_[bucket_at(r, b)] = static_cast<float>(median(std::move(times)));
  }
}

void WindowTable::assign(std::span<const float> values) {
  DDPRUN_ASSERT(values.size() == values_.size());
  values_.assign(values.begin(), values.end());
}

std::vector<RankPhases> WindowTable::step(std::size_t s) const {
  std::vector<RankPhases> ranks;
  for (std::size_t r = 0; r < world_; ++r) {
    std::copy_n(&values_[phases_at(r, s)], kRankPhases, ranks.emplace_back().begin());
  }
  return ranks;
}

bool WindowTable::known(std::size_t s) const {
  const auto ranks = step(s);
  return std::all_of(ranks.begin(), ranks.end(), [](const RankPhases& r) { return whole(r) > 0; });
}

double WindowTable::least_bucket(std::size_t b) const {
  double least = values_[bucket_at(0, b)];
  for (std::size_t r = 1; r < world_; ++r) {
    least = std::min<double>(least, values_[bucket_at(r, b)]);
  }
  return least;
}

namespace {

// Adds the median time that the ranks lost in one step, without the last one. In a world of one,
// the rank counts.
void add_lost(SyncWindow& w, const std::vector<RankPhases>& ranks) {
  const std::size_t last = last_of(ranks);
  std::vector<double> exposed, waiting;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == last && ranks.size() > 1) continue;
    exposed.push_back(ranks[r][kExposed]);
    waiting.push_back(std::min(ranks[r][kExposed], ranks[r][kComm] - ranks[last][kComm]));
  }
  w.lost += from_us(median(std::move(exposed)) / w.steps);
  w.lost_waiting += from_us(median(std::move(waiting)) / w.steps);
}

using Means = SyncWindow::Rank;
constexpr Duration Means::*kMeans[kRankPhases] = {
    &Means::outside,   &Means::forward, &Means::backward, &Means::data,
    &Means::optimizer, &Means::exposed, &Means::comm};

void add_step(SyncWindow& w, const std::vector<RankPhases>& ranks, std::int64_t number,
              std::vector<Straggler>& stragglers) {
  const double least = ranks[last_of(ranks)][kComm];
  const double parts = w.steps;
  add_lost(w, ranks);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t p = 0; p < kRankPhases; ++p) {
      w.ranks[r].*kMeans[p] += from_us(ranks[r][p] / parts);
    }
    const double waited = ranks[r][kComm] - least;
    w.ranks[r].waited += from_us(waited / parts);
    const double hidden = std::max(0.0, waited - ranks[r][kExposed]);
    w.hidden += from_us(hidden / parts / static_cast<double>(ranks.size()));
  }
  auto late = find_straggler(ranks);
  if (!late) return;
  late->step = number;
  SyncWindow::Rank& last = w.ranks[static_cast<std::size_t>(late->rank)];
  last.blamed += 1;
  last.late[static_cast<std::size_t>(late->phase)] += late->late;
  stragglers.push_back(*late);
}

void take_means(SyncWindow& w) {
  const auto n = static_cast<std::int64_t>(w.ranks.size());
  for (const SyncWindow::Rank& r : w.ranks) {
    w.step += (r.outside + r.data + r.optimizer + r.forward + r.backward + r.exposed) / n;
    w.comm += r.comm / n;
    w.exposed += r.exposed / n;
    w.waited += r.waited / n;
  }
  w.overlapped = w.comm > w.exposed ? w.comm - w.exposed : Duration{0};
}

}  // namespace

SyncWindow summarise(const WindowTable& table, int world_size, const std::vector<StepTimes>& mine) {
  SyncWindow w;
  w.first_step = mine.front().step;
  for (std::size_t s = 0; s < mine.size(); ++s) w.steps += table.known(s) ? 1 : 0;
  w.dropped = static_cast<int>(mine.size()) - w.steps;
  const auto world = static_cast<std::size_t>(world_size);
  w.ranks.resize(world);
  std::vector<double> exposed;
  std::vector<Straggler> stragglers;
  if (w.steps == 0) return w;
  for (std::size_t s = 0; s < mine.size(); ++s) {
    if (!table.known(s)) continue;
    const auto ranks = table.step(s);
    for (const RankPhases& r : ranks) exposed.push_back(r[kExposed]);
    add_step(w, ranks, mine[s].step, stragglers);
  }
  w.straggler = worst_straggler(stragglers);
  take_means(w);
  w.exposed_p50 = from_us(quantile(exposed, 0.5));
  w.exposed_p95 = from_us(quantile(exposed, 0.95));
  w.exposed_max = from_us(quantile(exposed, 1));
  for (std::size_t b = 0; b < mine.back().buckets.size(); ++b) {
    const double least = table.least_bucket(b);
    const std::size_t bytes = mine.back().buckets[b].bytes;
    const double algbw = least > 0 ? static_cast<double>(bytes) / least / 1e3 : 0;
    const double bus = 2 * static_cast<double>(world - 1) / static_cast<double>(world);
    w.buckets.push_back({bytes, from_us(least), algbw, algbw * bus});
  }
  return w;
}

}  // namespace ddprun::worker_sdk
