#pragma once
// What the daemon has done since it started, in plain integers, and what is new in its runs, in
// words. Counted by the Coordinator; daemon/metrics exports the numbers, daemon/server logs
// the news. A replayed journal counts nothing: numbers begin at 0 in each process. Pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/protocol/refusal.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

enum class LostBy {
  kClosed,  // Its connection was closed.
  kSilent,  // It sent nothing for heartbeat_timeout.
  kStuck,   // It could not stop its workers in time.
};
constexpr std::size_t kLostBys = 3;
constexpr std::size_t kVerdictKinds = static_cast<std::size_t>(Verdict::Kind::kInterrupted) + 1;

template <class... Messages>
constexpr auto names_of(const std::variant<Messages...>*) {
  return std::array{Messages::kName...};
}
inline constexpr auto kMessageKinds = names_of(static_cast<const AgentMessage*>(nullptr));

struct Counters {
  std::array<std::uint64_t, kMessageKinds.size()> messages{};  // From agents.
  std::uint64_t commands = 0;                                  // From operators.
  RefusalCounts refused;
  std::uint64_t rounds_sealed = 0;
  std::uint64_t restarts = 0;
  std::array<std::uint64_t, kLostBys> nodes_lost{};
  std::array<std::uint64_t, kVerdictKinds> verdicts{};
  std::uint64_t records = 0;  // Of the journal, whether or not there is one.
  std::uint64_t record_bytes = 0;
};

// One line for the log.
struct News {
  std::string run_id;
  NodeId node;  // May be empty.
  std::string text;
  bool is_trouble = false;
};

// Finds what one step of a run changed by comparing the run before and after it.
class StepWatch {
 public:
  StepWatch(const Run& run, const RunEvent& event);

  // After the step of the event that it was made with.
  void take(const std::string& run_id, const Run& run, TimePoint now, Counters& counters,
            std::vector<News>& news) const;

 private:
  NodeId node_;
  std::optional<LostBy> lost_by_;  // What the loss of a node by this event would count as.
  std::string how_;                // The same in words.
  bool had_node_;
  std::size_t nodes_;
  Run::State state_;
  int round_;
  int restart_count_;
};

// What the sync timers of a run's workers have counted, for the daemon's metrics. Nodes report what
// has been added, so that sums only grow, whichever nodes come, go or start again; a daemon that
// starts again begins at 0, as its other counters do. Kept by the Coordinator beside the run:
// nothing of it decides anything, and no journal has it. Pure.
class SyncTotals {
 public:
  // Ranks that are remembered one by one; those beyond are summed up as rank -1.
  static constexpr std::size_t kLateRanksMax = 64;

  void add(const SyncIncrease& more);

  const SyncCounts& sums() const { return sums_; }
  const std::map<int, LateCounts>& late() const { return late_; }  // By rank.
  // The phase in which a rank was late when it was last; empty: not known.
  std::string late_phase(int rank) const;

 private:
  SyncCounts sums_;
  std::map<int, LateCounts> late_;
  std::map<int, LateCounts> last_late_;  // The last addition of each.
};

}  // namespace ddprun::rendezvous
