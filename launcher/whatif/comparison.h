#pragma once
// The answers of `ddprunctl whatif`: a run beside what it would have been with other choices, and
// what that means in sentences. Pure.

#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/whatif/run_facts.h"
#include "launcher/whatif/what_if.h"

namespace ddprun::launcher {

struct NodeNumbers {
  int min = 1, max = 1;
};

// What the user gives. Empty and absent: as the run was, or as it would have to be assumed. Times
// are seconds.
struct WhatIf {
  std::vector<NodeNumbers> nodes{};
  std::vector<int> spare_nodes{};
  std::vector<int> spares{};
  std::vector<std::optional<double>> intervals{};  // Of checkpoints; nothing: the best.
  std::optional<double> mtbf{};                    // Between two failures of the run at its size.
  std::optional<double> node_loss_share{};
  std::optional<double> repair{};
  std::optional<double> checkpoint{};
  std::optional<double> length{};
};

constexpr std::size_t kChoicesMax = 100;
constexpr int kFaultsMax = 20'000;  // In a run, on average.

struct Choice {
  RunShape shape{};
  Expected expected{};
  double takes = 0;      // For the work of the first choice: seconds.
  bool is_best = false;  // Its interval of checkpoints was to be found.
};

struct Compared {
  RunFacts facts{};  // With what the user has given.
  WhatIf given{};
  double length = 0;
  double mtbf = 0;      // Of the run at its size.
  double modelled = 0;  // Goodput of the run as it was, by the model.
  Choice as_it_was{};   // With the failures that the user has given.
  std::vector<Choice> answers{};
  std::optional<double> best_interval{};  // For the run as it was; nothing: the rarer the better.
  double daly = 0;                        // The same by Daly's formula.
  std::vector<std::string> sentences{};
};

// "24.6 s", "13 min 4 s", "2 h 14 min": as the sentences have it.
std::string time_text(double seconds);

// A failure is Errc::kBadOption: one sentence.
Result<Compared> compare(RunFacts facts, const WhatIf& given);

}  // namespace ddprun::launcher
