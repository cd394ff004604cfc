// A worker of tests/system/operations_test.py: sync_worker <steps> <late rank> <ms>. All ranks
// synchronise the gradients of a small model; one of them takes <ms> longer for its forward pass.
// Prints what its own sync timer counted.

#include <ddprun/distributed_data_parallel.h>
#include <ddprun/process_group.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int steps = std::atoi(argv[1]);
  auto group = ddprun::ProcessGroup::init();
  const bool late = group.rank() == std::atoi(argv[2]);
  std::vector<float> weights(1000, 1);
  ddprun::DistributedDataParallel ddp(
      group,
      {{.name = "w", .value = ddprun::buffer(weights.data(), weights.size()), .shape = {1000}}});
  for (int step = 0; step < steps; ++step) {
    ddp.begin_forward();
    if (late) ::poll(nullptr, 0, std::atoi(argv[3]));
    ddp.begin_backward();
    ddp.mark_ready(0);
    ddp.finish_backward();
  }
  const ddprun::SyncReport total = ddp.total();
  std::printf("rank %d: %d steps, %.6f s exposed, %zu bytes\n", group.rank(), total.steps,
              std::chrono::duration<double>(total.exposed).count(), total.bytes);
}
