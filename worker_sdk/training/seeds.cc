#include "ddprun/seeds.h"

#include <sys/random.h>

#include <cerrno>

#include "ddprun/error.h"

namespace ddprun {
namespace {

// From the kernel itself: std::random_device would tie the program to the newest C library.
std::uint64_t random_number(const ProcessGroup& group) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
  const std::string why = std::generic_category().message(errno);
  throw Error(ErrorKind::system, {.rank = group.rank(), .operation = "shared_seed"},
              "getrandom: " + why);
}

}  // namespace

std::uint64_t shared_seed(ProcessGroup& group) {
  std::int64_t seed = group.rank() == 0 ? static_cast<std::int64_t>(random_number(group)) : 0;
  group.broadcast(buffer(&seed, 1), 0, {.on_host = true});
  return static_cast<std::uint64_t>(seed);
}

}  // namespace ddprun
