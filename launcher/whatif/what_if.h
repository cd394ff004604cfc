#pragma once
// What a run would come to under other conditions: failures at random times, spares, other numbers
// of nodes, another interval of checkpoints. A model of the rules by which runs are restarted
// (rendezvous/run/run.h), as few events as there are failures; so months take microseconds. No
// message, timer or rank of a run is played, as in tests/sim: tests/unit/launcher/what_if_test.cc
// compares the model with the real Run. Pure. Used by `ddprunctl whatif`.
//
//              fault                                     fault: from the beginning
//   computes ─────────▶ pauses, for as long as it costs ◀───┐
//      ▲                  │   │  too few nodes       ───────┘
//      └──────────────────┘   └────────────────▶ waits, until a lost node is back
//
// All times are seconds, as in the account. A *place* is the seat of one rank.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace ddprun::launcher {

// What things take in a run.
struct RunTimes {
  bool keeps_workers = false;  // An elastic job: survivors keep their processes and their state.
  double start = 0;            // From the start of the run to its first step.
  // Of a run that restarts: from a death to the next step of all ranks.
  double restart = 0;
  // Of an elastic job: a rank is gone, and the others continue, with the step that runs again.
  double change = 0;
  double growth = 0;  // A rank has come: until all continue.
  double refill = 0;  // From the death of a worker until its replacement is ready.
  // From the loss of a node until the run has noticed it, and until another one takes its place.
  double notice = 0;
  double repair = 0;
  double checkpoint = 0;  // Training stands still for so long.
};

// What can be chosen.
struct RunShape {
  int nodes_min = 1;
  int nodes_max = 1;
  int node_ranks = 1;
  int spare_nodes = 0;  // In reserve, beyond nodes_max.
  int spares = 0;       // Workers in reserve on each node, of an elastic job.
  // Of computing, between two checkpoints; infinite: none is written.
  double interval = std::numeric_limits<double>::infinity();

  int ranks_max() const { return nodes_max * node_ranks; }
  bool operator==(const RunShape&) const = default;
};

// A worker ends by itself, or a node with all of its workers.
struct Outage {
  double at = 0;  // Since the run's start.
  int node = 0;   // From 0. One that the run has not, or not now, has no fault.
  bool takes_node = false;
};

struct OutageRate {
  double node_mtbf = 0;        // Of one node with its workers: between two faults on average.
  double node_loss_share = 0;  // So many of them take the node.
};
// Faults without a memory, in the order of time; the same for the same seed on every machine, and
// those of the first n nodes do not depend on how many there are.
std::vector<Outage> random_outages(const OutageRate& rate, int nodes, double until,
                                   std::uint64_t seed);

// Rank-seconds, as the ledger counts them (docs/ledger.md).
struct Played {
  double kept = 0;
  double lost = 0;
  double checkpoint = 0;
  double paused = 0;  // `restart` and `startup`.
  double waited = 0;  // The same, for nodes.
  double wall = 0;    // Seconds.
  int faults = 0;     // Those that hit something.

  double in_run() const { return kept + lost + checkpoint + paused + waited; }
  double goodput() const { return in_run() > 0 ? kept / in_run() : 0; }
  // Work a second, of what `ranks` could do that never stop.
  double speed(int ranks) const { return wall > 0 ? kept / (wall * ranks) : 0; }
};

// What a run computes in a stretch of time.
struct Stretch {
  double from = 0, until = 0;
  int ranks = 0;
  bool operator==(const Stretch&) const = default;
};

// A run that lasts so long, and whose work is kept when it is over. `stretches`: gets the times in
// which it computes.
Played play(const RunTimes& times, const RunShape& shape, const std::vector<Outage>& faults,
            double until, std::vector<Stretch>* stretches = nullptr);

// Of a number of runs that differ in when things fail.
struct Expected {
  double goodput = 0;                     // The mean.
  double goodput_10 = 0, goodput_90 = 0;  // Of ten runs one is below, and one above.
  double speed = 0;
  // Shares of in_run().
  double lost = 0, checkpoint = 0, paused = 0, waited = 0;
  double faults = 0;
};
constexpr int kPlays = 200;
Expected expect(const RunTimes& times, const RunShape& shape, const OutageRate& rate, double until,
                int plays = kPlays);

// The interval with the highest speed; nothing: a checkpoint costs nothing, or the rarer the
// better, as where survivors have the state.
std::optional<double> best_interval(const RunTimes& times, RunShape shape, const OutageRate& rate);

// The same by Daly's formula of higher order (2006), which refines Young's (1974), for a run that
// restarts with all its ranks each `mtbf`.
double daly_interval(double checkpoint, double mtbf);

}  // namespace ddprun::launcher
