#pragma once
// `ddprun replay --bisect`: in the bundles of a run the first step that fails when it is computed
// again, or after which the state differs from that of the run. What is bad is assumed to stay bad,
// as NaNs in the weights do. Called by replay.cc.

#include <cstddef>
#include <functional>

#include "common/error.h"
#include "launcher/options/replay_options.h"

namespace ddprun::launcher {

// Of n > 0 things in order, of which all after the first bad one are bad, that one; n if none is.
// Asks of the first one first, then of the last one, and of none twice.
inline Result<std::size_t> first_bad(std::size_t n,
                                     const std::function<Result<bool>(std::size_t)>& is_bad) {
  const auto first = is_bad(0);
  if (!first) return first.error();
  if (*first || n == 1) return std::size_t{*first ? 0U : 1U};
  const auto last = is_bad(n - 1);
  if (!last) return last.error();
  if (!*last) return n;
  std::size_t good = 0, bad = n - 1;
  while (bad - good > 1) {
    const std::size_t middle = good + (bad - good) / 2;
    const auto found = is_bad(middle);
    if (!found) return found.error();
    (*found ? bad : good) = middle;
  }
  return bad;
}

// Returns the exit code: 0 if a step was found, 1 if there is none.
int run_bisect(const ReplayOptions& options);

}  // namespace ddprun::launcher
