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
  if (mapped_) place(*mapped_, "steps_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
}

void Progress::stood_still(Clock::duration took) {
  if (mapped_) place(*mapped_, "checkpoint_ns").fetch_add(ns(took), ProgressPage::kRelaxed);
}

void Progress::saved(Clock::time_point then) {
  if (!mapped_) return;
  const std::uint64_t startup = place(*mapped_, "startup_ns").load(ProgressPage::kRelaxed);
  if (startup == 0) return;
  const std::uint64_t age = ns(process_age() - (Clock::now() - then));
  auto& saved = place(*mapped_, "saved_ns");
  std::uint64_t before = saved.load(ProgressPage::kRelaxed);
  const std::uint64_t after = age > startup ? age - startup : 0;
  while (after > before && !saved.compare_exchange_weak(before, after)) {
  }
}

}  // namespace ddprun::worker_sdk
