#pragma once
// The ledgers of this node's places, what is reported of them to the daemon, and what a change of
// the membership has cost. Pure. Owned by Agent, which reports what happens to workers;
// ProgressMonitor reads what they count.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/ledger/place_ledger.h"
#include "common/ledger/time_parts.h"
#include "common/sync_counts.h"
#include "common/worker_link.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// What a worker's page reports of its work. A page may hold anything.
WorkCounts work_counts(const SyncCounts& counts);

// How a process was started: as a fork of one that has imported, and how long after the order.
struct WorkerStart {
  bool preloaded = false;
  Duration took{0};
};

class NodeLedger {
 public:
  // `began`: when the run was started here.
  NodeLedger(int places, TimePoint began);

  // A process begins in the place, as `rank`.
  void spawned(int local_rank, int rank, int round, TimePoint now, const WorkerStart& start = {});
  // A process begins that has no seat yet.
  void replaced(int local_rank, TimePoint now, const WorkerStart& start = {});
  // A process that lives begins another round.
  void seated(int local_rank, int rank, TimePoint now);
  // `repeated`: so many steps run again. `step`: from which the worker continues.
  void resumed(int local_rank, std::int64_t repeated, TimePoint now, std::int64_t step = 0);
  // The job had the state of `steps`, no worker has it any more, and it begins again at step
  // `from`: what the steps above have taken is lost.
  void state_lost(std::int64_t steps, std::int64_t from);
  // Its part in the round is over, and the process lives on.
  void left(int local_rank, TimePoint now);
  void counted(int local_rank, const WorkerCounts& counts, TimePoint now);
  // It has no seat, and every seat of the node is taken.
  void in_reserve(int local_rank, TimePoint now);
  // The workers are ordered to end.
  void stopping(TimePoint now);
  void ended(int local_rank, bool succeeded, TimePoint now);
  // This node is in reserve and waits for no worker, or takes part again.
  void spare(bool is_spare, TimePoint now);

  // For the daemon; with all that a picture of the run needs if `whole`.
  rendezvous::NodeTimes times(bool whole, TimePoint now) const;

 private:
  // Of one process, by its page.
  struct Counted {
    WorkCounts work{};
    std::uint64_t steps = 0, late_steps = 0;
    std::uint64_t expected = 0;  // Of all steps that it makes; 0: unknown.
    TimeParts::Time late{0};
    std::uint64_t shards = 0;  // Of the last step.
    TimeParts::Time won{0};    // That shards have moved.

    void add(const Counted& more) {
      steps += more.steps, late_steps += more.late_steps, late += more.late;
      won += more.won;
    }
  };
  struct Place {
    PlaceLedger ledger;
    int rank = -1;
    Counted counted{};  // Of the present process, ...
    TimePoint counted_at{};
    Counted past{};  // ... and of those before: numbers only.
    TimeBins bins{};
    std::uint64_t repeated = 0;          // Steps.
    std::vector<ProcessStart> starts{};  // The last is that of the present process.
  };

  Place& place(int local_rank);
  static void begin_counting(Place& place, TimePoint now, const WorkerStart& start);
  TimePart waits_as() const;

  TimePoint began_;
  std::map<int, Place> places_;  // By local rank.
  // At which the workers here began: with nothing, or with a checkpoint.
  std::optional<std::int64_t> first_step_;
  bool computed_ = false;  // A round has begun here.
  bool spare_ = false;
};

// What a change of the membership has cost those workers of this node that stay: one line, once the
// last of them continues. Lives from the seat to that line.
class ChangeCost {
 public:
  // Of the workers that have got seats of the round. `lost_steps`: as in the seat.
  explicit ChangeCost(const std::vector<int>& local_ranks, std::int64_t lost_steps = 0);

  // A worker continues. The line, if it is the last; `world_size`: of the round.
  std::optional<std::string> resumed(int local_rank, const worker_link::Resumed& resumed,
                                     int world_size);
  bool loses_steps() const { return lost_steps_ > step_; }

 private:
  int workers_ = 0;
  std::set<int> waited_for_;  // Local ranks.
  std::int64_t lost_steps_ = 0;
  std::int64_t step_ = 0;
  std::int64_t repeated_ = 0;
  std::int64_t lost_us_ = 0;
};

}  // namespace ddprun::agent
