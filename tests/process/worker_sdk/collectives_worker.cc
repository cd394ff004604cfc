// A worker for system tests: joins as its environment says, tries collectives, and tells on which
// backend: "rank 2 of 4 on cpu: right".

#include <cstdio>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

bool sums_are_right(ddprun::ProcessGroup& group) {
  const auto n = static_cast<float>(group.world_size());
  for (const std::size_t count : {1u, 3000u, 1000003u}) {
    std::vector<float> values(count, static_cast<float>(group.rank() + 1));
    group.all_reduce(ddprun::buffer(values.data(), count));
    if (values.front() != n * (n + 1) / 2 || values.back() != values.front()) return false;
    values.assign(count, static_cast<float>(group.rank()));
    group.broadcast(ddprun::buffer(values.data(), count), group.world_size() - 1);
    if (values.front() != n - 1 || values.back() != n - 1) return false;
  }
  auto inside = group.split(group.identity().group_rank);
  float one = 1;
  inside->all_reduce(ddprun::buffer(&one, 1));
  group.barrier();
  return inside->backend() == "shm" && one == static_cast<float>(inside->world_size());
}

}  // namespace

int main() {
  try {
    auto group = ddprun::ProcessGroup::init();
    const bool right = sums_are_right(group);
    std::printf("rank %d of %d on %s: %s\n", group.rank(), group.world_size(),
                group.backend().c_str(), right ? "right" : "wrong");
    return right ? 0 : 1;
  } catch (const ddprun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
