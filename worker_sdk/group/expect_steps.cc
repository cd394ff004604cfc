#include "ddprun/expect_steps.h"

#include <algorithm>

#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun {

void expect_steps(ProcessGroup& group, std::int64_t more) {
  const auto left = static_cast<std::uint64_t>(std::max<std::int64_t>(more, 0));
  worker_sdk::GroupInside::progress(group)->expect_steps(left);
}

}  // namespace ddprun
