#include "worker_sdk/timer/sync_timer.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

void add(SyncReport& sum, const SyncReport& step) {
  sum.steps += step.steps;
  sum.comm += step.comm;
  sum.exposed += step.exposed;
  sum.contended += step.contended;
  sum.bytes += step.bytes;
  sum.buckets += step.buckets;
  sum.outside += step.outside;
  sum.forward += step.forward;
  sum.backward += step.backward;
  sum.unknown += step.unknown;
}

}  // namespace

SyncReport difference(const SyncReport& sum, const SyncReport& before) {
  return {.steps = sum.steps - before.steps,
          .comm = sum.comm - before.comm,
          .exposed = sum.exposed - before.exposed,
          .contended = sum.contended - before.contended,
          .bytes = sum.bytes - before.bytes,
          .buckets = sum.buckets - before.buckets,
          .outside = sum.outside - before.outside,
          .forward = sum.forward - before.forward,
          .backward = sum.backward - before.backward,
          .waited = sum.waited - before.waited,
          .unknown = sum.unknown - before.unknown,
          .dropped = sum.dropped - before.dropped};
}

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
    : rank_(rank), world_size_(world_size), window_(window) {}

void SyncTimer::record(StepTimes step) {
  if (step.known) {
    sum_up(step);
  } else {
    ++total_.dropped;
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
  last_ = {.steps = 1,
           .comm = step.comm(),
           .exposed = step.exposed,
           .contended = step.contended,
           .buckets = static_cast<int>(step.buckets.size()),
           .outside = step.outside,
           .forward = step.forward,
           .backward = step.backward,
           .unknown = world_size_ > 1 ? step.exposed : std::chrono::nanoseconds{0}};
  for (const BucketTimes& b : step.buckets) last_.bytes += b.bytes;
  add(total_, last_);
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
    double least = ranks[0].comm;
    for (const RankPhases& r : ranks) least = std::min(least, r.comm);
    const RankPhases& me = ranks[static_cast<std::size_t>(rank_)];
    total_.waited += std::chrono::nanoseconds(
        static_cast<std::int64_t>(1e3 * std::min(me.exposed, me.comm - least)));
    if (world_size_ > 1) total_.unknown -= given_[s].exposed;
  }
  SyncWindow window = summarise(table, world_size_, given_);
  sum_up(window);
  return window;
}

void SyncTimer::sum_up(const SyncWindow& window) {
  window_steps_ += window.steps;
  for (std::size_t r = 0; r < window.ranks.size(); ++r) {
    const SyncWindow::Rank& rank = window.ranks[r];
    if (rank.blamed == 0) continue;
    LateRank& sum = late_[static_cast<int>(r)];
    sum.rank = static_cast<int>(r);
    sum.steps += rank.blamed;
    for (std::size_t p = 0; p < sum.late.size(); ++p) sum.late[p] += rank.late[p];
  }
}

std::vector<LateRank> SyncTimer::late_ranks() const {
  constexpr std::size_t kMost = 3;
  std::vector<LateRank> ranks;
  for (const auto& [rank, sum] : late_) ranks.push_back(sum);
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](auto& a, auto& b) { return a.whole() > b.whole(); });
  if (ranks.size() > kMost) ranks.resize(kMost);
  return ranks;
}

}  // namespace ddprun::worker_sdk
