// A worker of the backend nccl that does not mind SIGTERM: system/nccl_test.py runs it on the fakes
// and looks what it is told when rank 1 is gone.
//   nccl_worker STEP    at that step rank 1 leaves its connections to a child and dies

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ddprun/ddprun.h"

int main(int argc, char** argv) {
  const int last = argc > 1 ? std::atoi(argv[1]) : 10;
  ::signal(SIGTERM, SIG_IGN);
  auto group = ddprun::ProcessGroup::init({.backend = "nccl"});
  auto pair = group.split(group.rank() == 0 ? 0 : 1);  // The second has rank 1 in it.
  try {
    for (int step = 0;; ++step) {
      if (step == last && group.rank() == 1) {
        // Nobody's connection ends while the child has it, too.
        if (::fork() == 0) {
          for (;;) ::pause();
        }
        ::kill(::getpid(), SIGKILL);
      }
      std::vector<float> values(1000, 1);
      group.all_reduce(ddprun::buffer(values.data(), values.size()));
    }
  } catch (const ddprun::Error& error) {
    std::printf("rank %d: peer %d, waited %lld ms, kind %d: %s\n", group.rank(), error.where().peer,
                static_cast<long long>(error.where().waited.count()),
                static_cast<int>(error.kind()), error.what());
  }
  try {
    pair->barrier();
    float value = 0;
    pair->all_reduce(ddprun::buffer(&value, 1));
  } catch (const ddprun::Error& error) {
    std::printf("sibling of rank %d: %s\n", group.rank(), error.what());
  }
  return 5;
}
