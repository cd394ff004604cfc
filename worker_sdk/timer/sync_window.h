#pragma once
// All ranks' times of one window of steps: how they are laid out for the exchange, and what they
// say. Pure. Used by sync_timer.cc.

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "ddprun/sync_report.h"
#include "worker_sdk/timer/step_times.h"

namespace ddprun::worker_sdk {

// Of one rank in one step, in microseconds: each StepPhase, then these.
enum : std::size_t { kStepPhases = 5, kExposed = kStepPhases, kComm, kRankPhases };
using RankPhases = std::array<double, kRankPhases>;

// Of one step. Nobody where the others waited for less than a millisecond and less than a twentieth
// of the step.
std::optional<Straggler> find_straggler(std::span<const RankPhases> ranks);

// The worst of a window by all its late steps together; `late` of those that find_straggler()
// found.
std::optional<Straggler> worst_straggler(std::span<const Straggler> late);

// The exchanged array: for each rank its steps' phases, step by step, then the median time of each
// bucket. All in microseconds.
class WindowTable {
 public:
  WindowTable(int world_size, std::size_t steps, std::size_t buckets);

  void put(int rank, const std::vector<StepTimes>& steps);
  const std::vector<float>& values() const { return values_; }
  void assign(std::span<const float> values);

  std::vector<RankPhases> step(std::size_t s) const;  // By rank.
  bool known(std::size_t s) const;                    // Every rank knows its times of it.
  double least_bucket(std::size_t b) const;           // Over ranks.

 private:
  std::size_t phases_at(std::size_t rank, std::size_t step) const;
  std::size_t bucket_at(std::size_t rank, std::size_t bucket) const;

  std::size_t world_, steps_, buckets_;
  std::vector<float> values_;
};

// What the table says about steps of which this rank took `mine`.
SyncWindow summarise(const WindowTable& table, int world_size, const std::vector<StepTimes>& mine);

}  // namespace ddprun::worker_sdk
