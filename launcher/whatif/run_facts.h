#pragma once
// What the account of a run (docs/ledger.md) shows of its times, its size and its failures, as a
// beginning for the question what would have been otherwise. What the run has never seen has a
// default, which its reader has to name. Pure. Used by `ddprunctl whatif`.

#include <string>
#include <string_view>

#include "common/error.h"
#include "launcher/whatif/what_if.h"

namespace ddprun::launcher {

// A mean of so many cases; of none: assumed.
struct RunFact {
  double value = 0;
  int cases = 0;
};

struct RunFacts {
  std::string run_id{};
  double wall = 0;  // Seconds.
  int ranks = 0;
  bool keeps_workers = false;
  bool has_goodput = false;
  double goodput = 0;
  int faults = 0;  // Failures and lost nodes.
  RunShape shape{};

  // Seconds, as in RunTimes.
  double start = 0;
  RunFact step{};
  RunFact restart{}, change{}, growth{}, refill{}, notice{}, repair{}, checkpoint{};
  RunFact node_mtbf{};
  RunFact node_loss_share{};  // Of failures.

  RunTimes times() const;
  OutageRate rate() const;
};

// `text`: an account, or the record of a run that has one. The failure's context names what it is
// not.
Result<RunFacts> read_run_facts(std::string_view text);

}  // namespace ddprun::launcher
