// A worker for system tests: joins by its environment, tries collectives, and prints the backend:
// "rank 2 of 4 on cpu: right".
//
// collectives_worker FILE: reduces until something ends that, writes FILE.RANK when it has begun,
// outlives SIGTERM, and prints what it threw.

#include <signal.h>

#include <cstdio>
#include <fstream>
#include <string>
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

[[noreturn]] void reduce_for_ever(ddprun::ProcessGroup& group, const std::string& file) {
  ::signal(SIGTERM, SIG_IGN);
  std::vector<float> values(100000, 1);
  for (int step = 0;; ++step) {
    group.all_reduce(ddprun::buffer(values.data(), values.size()));
    if (step == 10) std::ofstream{file + "." + std::to_string(group.rank())};
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto group = ddprun::ProcessGroup::init();
    if (argc > 1) reduce_for_ever(group, argv[1]);
    const bool right = sums_are_right(group);
    std::printf("rank %d of %d on %s: %s\n", group.rank(), group.world_size(),
                group.backend().c_str(), right ? "right" : "wrong");
    return right ? 0 : 1;
  } catch (const ddprun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
