#pragma once
// The line that a terminal shows below the workers' lines while a run trains. Pure. Used by Agent.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::agent {

struct StatusFacts {
  std::string run_id{};  // "none": the user has named none.
  int world_size = 0;    // 0: no round runs.
  int nodes = 1;
  std::chrono::seconds elapsed{0};
  std::optional<std::uint64_t> step{};  // Nothing: no worker reports any.
  double steps_per_s = 0;               // 0: not known yet.
  int late_rank = -1;                   // That the others wait for; -1: none.
  double late_ms = 0;                   // A step.
  int restart_count = 0;
  int max_restarts = 0;
};

struct StatusStyle {
  int columns = 80;
  bool colour = true;
  bool utf8 = true;
};

// One line without its end, narrower than the terminal; what is needed least is left out first.
std::string status_text(const StatusFacts& facts, const StatusStyle& style);

}  // namespace ddprun::agent
