#include "common/system/descriptor_limit.h"

#include <sys/resource.h>

namespace ddprun {

std::size_t raise_descriptor_limit(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit more{wanted, wanted};
  if (wanted > limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &more) == 0) return wanted;
  // Best effort: what is missing shows where it is missed.
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace ddprun
