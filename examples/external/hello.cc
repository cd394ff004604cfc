// An example of a user's first program.

#include <ddprun/ddprun.h>

#include <cstdio>

int main() {
  auto group = ddprun::ProcessGroup::init();
  float loss = 1.5f;
  group.all_reduce(ddprun::buffer(&loss, 1), ddprun::ReduceOp::avg);
  std::printf("rank %d of %d, backend %s, loss %.1f\n", group.rank(), group.world_size(),
              group.backend().c_str(), static_cast<double>(loss));
}
