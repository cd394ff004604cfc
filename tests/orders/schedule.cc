#include "tests/orders/schedule.h"

#include <algorithm>
#include <bit>

#include "common/assert.h"

namespace ddprun::orders {
namespace {

int first_of(Threads threads) { return std::countr_zero(threads); }

template <class Clock>
void join(Clock& clock, const Clock& other) {
  for (std::size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], other[t]);
}

}  // namespace

bool depend(const Access& a, const Access& b) {
  if (a.address == 0 || a.address != b.address) return false;
  const auto pair = [&](Access::Kind x, Access::Kind y) {
    return (a.kind == x && b.kind == y) || (a.kind == y && b.kind == x);
  };
  if (pair(Access::kWait, Access::kWake)) return true;
  return a.changes() || b.changes();
}

void Schedule::begin() {
  depth_ = 0;
  redundant_ = false;
  clocks_ = {};
}

// Threads with a next access that was tried before and is independent of all that came since.
Threads Schedule::asleep_now(const std::array<Access, kThreadsMax>& next) const {
  if (depth_ == 0) return 0;
  const Step& last = path_[depth_ - 1];
  Threads asleep = 0;
  for (int t = 0; t < kThreadsMax; ++t) {
    if (!((last.asleep | last.tried) & one(t)) || t == last.thread) continue;
    if (!depend(last.access, next[static_cast<std::size_t>(t)])) asleep |= one(t);
  }
  return asleep;
}

int Schedule::choose(Threads ready, const std::array<Access, kThreadsMax>& next) {
  DDPRUN_ASSERT(ready != 0);
  if (seed_ != 0) {
    std::array<int, kThreadsMax> list{};
    std::size_t n = 0;
    for (int t = 0; t < kThreadsMax; ++t) {
      if (ready & one(t)) list[n++] = t;
    }
    return list[random_() % n];
  }
  if (redundant_) return first_of(ready);
  if (depth_ == path_.size()) {
    Step step{.ready = ready, .asleep = asleep_now(next)};
    if ((ready & ~step.asleep) == 0) {
      redundant_ = true;
      return first_of(ready);
    }
    step.thread = first_of(ready & ~step.asleep);
    step.to_try = one(step.thread);
    path_.push_back(step);
  }
  Step& step = path_[depth_++];
  step.access = next[static_cast<std::size_t>(step.thread)];
  enter(step);
  return step.thread;
}

// What comes before it: all of its own thread, and whatever depends. Those of the latter that
// nothing else brings before it could as well come after.
void Schedule::enter(Step& step) {
  const auto me = static_cast<std::size_t>(step.thread);
  step.clock = clocks_[me];
  std::vector<std::size_t> races;
  for (std::size_t i = depth_ - 1; i-- > 0;) {
    const Step& other = path_[i];
    if (!depend(other.access, step.access)) continue;
    if (!comes_before(i, step)) races.push_back(i);
    join(step.clock, other.clock);
  }
  step.clock[me] = depth_;
  clocks_[me] = step.clock;
  for (const std::size_t i : races) try_before(i);
}

bool Schedule::comes_before(std::size_t i, const Step& step) const {
  return i < step.clock[static_cast<std::size_t>(path_[i].thread)];
}

// Has the newest step come before step i, in another execution: that one begins with a thread that
// needs none of the other steps since then for its first one.
void Schedule::try_before(std::size_t i) {
  std::vector<std::size_t> without;  // What does not follow from step i.
  Threads begun = 0, first = 0;
  for (std::size_t j = i + 1; j < depth_; ++j) {
    if (comes_before(i, path_[j]) && j + 1 < depth_) continue;
    const bool needs = std::any_of(without.begin(), without.end(),
                                   [&](std::size_t k) { return comes_before(k, path_[j]); });
    if (!needs && !(begun & one(path_[j].thread))) first |= one(path_[j].thread);
    begun |= one(path_[j].thread);
    without.push_back(j);
  }
  Step& step = path_[i];
  first &= step.ready;
  if (first & (step.to_try | step.asleep)) return;
  step.to_try |= first ? one(first_of(first)) : step.ready;
}

std::size_t Schedule::choose_value(std::size_t choices) {
  if (seed_ != 0) return random_() % choices;
  if (redundant_) return 0;
  Step& step = path_[depth_ - 1];
  step.values = choices;
  DDPRUN_ASSERT(step.value < choices);
  return step.value;
}

void Schedule::follow(Threads woken) {
  if (seed_ != 0 || redundant_) return;
  const Clock waker = path_[depth_ - 1].clock;
  for (std::size_t t = 0; t < clocks_.size(); ++t) {
    if (woken & one(static_cast<int>(t))) join(clocks_[t], waker);
  }
}

void Schedule::follow_all(Threads woken) {
  Clock all{};
  for (const Clock& clock : clocks_) join(all, clock);
  for (std::size_t t = 0; t < clocks_.size(); ++t) {
    if (woken & one(static_cast<int>(t))) clocks_[t] = all;
  }
}

bool Schedule::advance() {
  if (seed_ != 0) return true;
  while (!path_.empty()) {
    Step& last = path_.back();
    if (++last.value < last.values) return true;
    last.tried |= one(last.thread);
    last.value = 0, last.values = 1;
    if (const Threads left = last.to_try & ~last.tried & ~last.asleep; left != 0) {
      last.thread = first_of(left);
      return true;
    }
    path_.pop_back();
  }
  return false;
}

}  // namespace ddprun::orders
