#include "common/descriptor_limit.h"

#include <sys/resource.h>

namespace ddprun {

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE,
                    &limit);  // Best effort: what is missing shows where it is missed.
}

}  // namespace ddprun
