#pragma once
// Where each rank stands when a round begins, and what follows: which ranks have the newest
// committed state and which lack it. Pure. job_round.cc carries it through the group.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::elastic {

// The condition of a rank's kept state.
enum class Condition : std::int64_t {
  kInitial = 0,  // As the program began; may differ between ranks.
  kWhole,        // The state after `committed` steps, equal on all such ranks.
  kTorn,         // A commit has failed half-way.
};

// Travels between ranks of one build as plain numbers.
struct Standing {
  Condition condition = Condition::kInitial;
  std::int64_t committed = 0;
  std::int64_t visited = 0;     // The last boundary between steps that was visited.
  std::int64_t target = 0;      // The steps of the current run(), or of the last one.
  std::int64_t closed = 0;      // The last target at which all ranks have met.
  std::uint64_t signature = 0;  // Of the kept state.
  std::int64_t node = 0;        // Of this rank, in this round.
  // -1: in no round, like the state that a program begins with or resumes from a checkpoint.
  std::int64_t made = -1;  // The round that has committed the last step of this state.
  std::int64_t met = -1;   // The last round that this rank began with all others in one state.
  std::int64_t pace = 0;   // Of this rank, in earlier rounds (elastic/shard_division.h).
  // Steps between two saves in the memory folder, as this rank has measured; 0: not yet; -1: it
  // saves nothing there.
  std::int64_t saves = -1;

  static constexpr std::size_t kNumbers = 11;
  std::array<std::int64_t, kNumbers> numbers() const;
  static Standing of(const std::int64_t* numbers);
};

struct Settlement {
  std::int64_t committed = 0;  // The step from which all continue,
  std::int64_t made = -1;      // and the round that the state is of.
  std::int64_t visited = 0;
  std::int64_t target = 0, closed = 0;  // The largest.
  int source = 0;                       // The lowest rank that has that state.
  bool has_lacking = false;
  bool is_lost = true;      // No rank has a state of an earlier round.
  std::int64_t saves = -1;  // The largest, or -1 if any rank saves nothing.
  std::string problem;      // Not empty: the ranks cannot continue,
  int culprit = -1;         // because of this rank,
  bool is_torn = false;     // and not because ranks keep different things.
};

Settlement settle(const std::vector<Standing>& by_rank);

// Does this rank receive the source's state?
bool lacks(const Standing& mine, const Settlement& settled, int rank);

}  // namespace ddprun::elastic
