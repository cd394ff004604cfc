#include "ddprun/seeds.h"

#include <random>

namespace ddprun {

std::uint64_t shared_seed(ProcessGroup& group) {
  std::int64_t seed = 0;
  if (group.rank() == 0) {
    std::random_device entropy;
    seed = static_cast<std::int64_t>(std::uint64_t{entropy()} << 32 | entropy());
  }
  group.broadcast(buffer(&seed, 1), 0, {.on_host = true});
  return static_cast<std::uint64_t>(seed);
}

}  // namespace ddprun
