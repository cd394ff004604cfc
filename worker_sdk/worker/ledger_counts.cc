// The part of Progress that counts what the agent's ledger needs.

#include <algorithm>

#include "worker_sdk/worker/process_age.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {
namespace {

std::uint64_t ns(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

std::atomic<std::uint64_t>& place(ProgressPage& page, SyncCounts::Row row) {
  return page.sync.values[row.at];
}

// 0: no step has begun.
std::uint64_t since_first_step(ProgressPage& page, std::chrono::steady_clock::time_point then) {
  const std::uint64_t startup = place(page, "startup_ns").load(ProgressPage::kRelaxed);
  if (startup == 0) return 0;
  const std::uint64_t age = ns(process_age() - (std::chrono::steady_clock::now() - then));
  return age > startup ? age - startup : 0;
}

void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t after) {
  std::uint64_t before = value.load(ProgressPage::kRelaxed);
  while (after > before && !value.compare_exchange_weak(before, after)) {
  }
}

}  // namespace

// Several groups or models of a process may begin; the first counts.
void Progress::begin_steps() {
  if (!mapped_) return;
  auto& startup = place(*mapped_, "startup_ns");
  std::uint64_t none = 0;
  startup.compare_exchange_strong(none, std::max<std::uint64_t>(ns(process_age()), 1));
}

void Progress::expect_steps(std::uint64_t more) {
  if (!mapped_) return;
  const std::uint64_t made = place(*mapped_, "steps").load(ProgressPage::kRelaxed);
  place(*mapped_, "expected").store(made + more, ProgressPage::kRelaxed);
}

void Progress::count_step(Clock::duration took) {
  if (!mapped_) return;
  place(*mapped_, "steps_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
  place(*mapped_, "commits").fetch_add(1, ProgressPage::kRelaxed);
}

void Progress::stood_still(Clock::duration took) {
  if (mapped_) place(*mapped_, "checkpoint_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
}

void Progress::saved(Clock::time_point then) {
  if (mapped_) raise_to(place(*mapped_, "saved_ns"), since_first_step(*mapped_, then));
}

void Progress::stepped(Clock::time_point then) {
  if (mapped_) raise_to(place(*mapped_, "stepped_ns"), since_first_step(*mapped_, then));
}

}  // namespace ddprun::worker_sdk
