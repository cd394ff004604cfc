#include "worker_sdk/timer/sync_timer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

// By a GPU's clock, a phase may have a negative length.
std::uint64_t ns(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

SyncCounts counts_of(const StepTimes& step) {
  SyncCounts counts{{"steps", 1},
                    {"comm_ns", ns(step.comm())},
                    {"exposed_ns", ns(step.exposed)},
                    {"contended_ns", ns(step.contended)},
                    {"buckets", step.buckets.size()},
                    {"outside_ns", ns(step.outside)},
                    {"forward_ns", ns(step.forward)},
                    {"backward_ns", ns(step.backward)},
                    {"data_ns", ns(step.data)},
                    {"optimizer_ns", ns(step.optimizer)}};
  for (const BucketTimes& b : step.buckets) counts["bytes"] += b.bytes;
  return counts;
}

LateCounts counts_of(const SyncWindow::Rank& rank) {
  const auto late = [&](StepPhase phase) { return ns(rank.late[static_cast<std::size_t>(phase)]); };
  return {{"steps", static_cast<std::uint64_t>(rank.blamed)},
          {"outside_ns", late(StepPhase::outside)},
          {"forward_ns", late(StepPhase::forward)},
          {"backward_ns", late(StepPhase::backward)},
          {"data_ns", late(StepPhase::data)},
          {"optimizer_ns", late(StepPhase::optimizer)}};
}

SyncReport report_of(const SyncCounts& counts) {
  DDPRUN_ASSERT(counts["settled_ns"] <= counts["exposed_ns"]);
  const auto time = [](std::uint64_t ns) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(ns));
  };
  return {.steps = static_cast<int>(counts["steps"]),
          .comm = time(counts["comm_ns"]),
          .exposed = time(counts["exposed_ns"]),
          .contended = time(counts["contended_ns"]),
          .bytes = counts["bytes"],
          .buckets = static_cast<int>(counts["buckets"]),
          .outside = time(counts["outside_ns"]),
          .forward = time(counts["forward_ns"]),
          .backward = time(counts["backward_ns"]),
          .waited = time(counts["waited_ns"]),
          .unknown = time(counts["exposed_ns"] - counts["settled_ns"]),
          .dropped = static_cast<int>(counts["dropped"]),
          .data = time(counts["data_ns"]),
          .optimizer = time(counts["optimizer_ns"])};
}

// The rate of all buckets together, in bytes/s.
std::uint64_t busbw_of(const SyncWindow& window) {
  double bytes = 0, seconds = 0;
  for (const SyncWindow::Bucket& b : window.buckets) {
    bytes += static_cast<double>(b.bytes);
    seconds += std::chrono::duration<double>(b.transfer).count();
  }
  const auto n = static_cast<double>(window.ranks.size());
  return seconds > 0 ? static_cast<std::uint64_t>(bytes / seconds * 2 * (n - 1) / n) : 0;
}

}  // namespace

void charge_contention(StepTimes& step, const Contention& during) {
  constexpr std::chrono::nanoseconds kNothing{0};
  auto busy = kNothing;
  for (const BucketTimes& b : step.buckets) {
    const auto begin = std::max(b.started, step.pass_begin);
    const auto end = std::min(b.started + b.comm, step.pass_end);
    if (begin < end) busy += end - begin;
  }
  const auto most = std::min({during.collectives, busy, step.backward});
  step.contended = std::clamp(during.delayed, kNothing, std::max(kNothing, most));
  step.backward -= step.contended;
  step.exposed += step.contended;
}

SyncTimer::SyncTimer(int rank, int world_size, int window)
    : rank_(rank), world_size_(world_size), window_(window) {
  DDPRUN_ASSERT(rank >= 0 && rank < world_size);
}

void SyncTimer::record(StepTimes step) {
  if (step.known) {
    sum_up(step);
  } else {
    ++total_["dropped"];
  }
  if (window_ > 0) {
    // The buckets were rebuilt: times before and after do not go together.
    if (!filling_.empty() && filling_[0].buckets.size() != step.buckets.size()) filling_.clear();
    filling_.push_back(step);
  }
  if (!step.known) return;
  recent_.push_back(std::move(step));
  if (recent_.size() > kRecent) recent_.pop_front();
}

void SyncTimer::sum_up(const StepTimes& step) {
  last_ = counts_of(step);
  if (world_size_ == 1) last_["settled_ns"] = last_["exposed_ns"];  // There is no rank to wait for.
  total_.add(last_);
}

bool SyncTimer::window_full() const {
  constexpr std::size_t kFirst = 8;
  const auto whole = static_cast<std::size_t>(window_);
  return window_ > 0 && filling_.size() >= std::min(whole, std::max(kFirst, all_given_));
}

std::vector<float> SyncTimer::contribution() {
  DDPRUN_ASSERT(!filling_.empty());
  given_ = std::exchange(filling_, {});
  all_given_ += given_.size();
  WindowTable table(world_size_, given_.size(), given_.back().buckets.size());
  table.put(rank_, given_);
  return table.values();
}

SyncWindow SyncTimer::analyse(std::span<const float> sum) {
  WindowTable table(world_size_, given_.size(), given_.back().buckets.size());
  table.assign(sum);
  for (std::size_t s = 0; s < given_.size(); ++s) {
    if (!table.known(s)) continue;
    const auto ranks = table.step(s);
    double least = ranks[0][kComm];
    for (const RankPhases& r : ranks) least = std::min(least, r[kComm]);
    const RankPhases& me = ranks[static_cast<std::size_t>(rank_)];
    total_["waited_ns"] +=
        static_cast<std::uint64_t>(1e3 * std::max(0.0, std::min(me[kExposed], me[kComm] - least)));
    if (world_size_ > 1) total_["settled_ns"] += ns(given_[s].exposed);
  }
  SyncWindow window = summarise(table, world_size_, given_);
  sum_up(window);
  return window;
}

void SyncTimer::sum_up(const SyncWindow& window) {
  window_steps_ += window.steps;
  if (rank_ == 0) total_["busbw"] = busbw_of(window);
  for (std::size_t r = 0; r < window.ranks.size(); ++r) {
    if (window.ranks[r].blamed > 0) late_[static_cast<int>(r)].add(counts_of(window.ranks[r]));
  }
}

SyncReport SyncTimer::last() const { return report_of(last_); }
SyncReport SyncTimer::total() const { return report_of(total_); }

WorkerCounts SyncTimer::counted() const {
  const auto mine = late_.find(rank_);
  return {total_, mine == late_.end() ? LateCounts() : mine->second};
}

std::vector<LateRank> SyncTimer::late_ranks() const {
  constexpr std::size_t kMost = 3;
  std::vector<LateRank> ranks;
  for (const auto& [rank, counts] : late_) ranks.push_back({rank, counts});
  std::ranges::stable_sort(ranks, std::greater(), &LateRank::time);
  if (ranks.size() > kMost) ranks.resize(kMost);
  return ranks;
}

}  // namespace ddprun::worker_sdk
