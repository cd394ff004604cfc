#pragma once
// The limits of ulimit that ddprun meets: which, how high, and how to name one that is too low.

#include <cstdint>
#include <string>

namespace ddprun {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// Soft limits, as `ulimit -Sn` and `ulimit -Su` show them.
struct Limits {
  std::uint64_t descriptors = kUnlimited;
  std::uint64_t processes = kUnlimited;
};

Limits current_limits();

// Raises this process's soft limits to its hard limits, and returns what they were: a daemon needs
// a descriptor for each agent, an agent several for each worker, and the usual soft limit of 1,024
// is for programs that select(). With `descriptors`, raises the hard limit too, if this process
// may.
Limits raise_soft_limits(std::uint64_t descriptors = 0);

// Gives `pid` these soft limits: workers, and what starts them, run under the user's own. A child
// that cannot be given them keeps ours.
void set_soft_limits(int pid, const Limits& limits);

// Behind a failure with that errno: "; ulimit -n is 64, and ddprun needs about 5 a worker, 320 for
// 64"; empty if it is not about a limit.
std::string what_is_short(int error, const Limits& limits, int workers);

}  // namespace ddprun
