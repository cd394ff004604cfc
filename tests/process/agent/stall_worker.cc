// A worker of tests/failures/stall_test.py: stall_worker <rank> <how>. All ranks take a few steps;
// then <rank> stays somewhere for ever, and the others go on as far as they can.
//   loop    computes outside of every collective       evaluate  waits in a phase that it named
//   stop    is stopped                                 never     sleeps instead of the collective
//   none    no rank does

#include <ddprun/process_group.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

volatile unsigned long turns = 0;

void stay(const std::string& how, ddprun::ProcessGroup& group) {
  if (how == "loop") {
    for (;;) turns = turns + 1;
  }
  if (how == "evaluate") group.set_phase("evaluate");
  if (how == "stop") std::raise(SIGSTOP);
  if (how != "none") {
    for (;;) ::pause();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto group = ddprun::ProcessGroup::init();
  float value = 1;
  for (int step = 0; step < 20; ++step) group.all_reduce(ddprun::buffer(&value, 1));
  if (group.rank() == std::atoi(argv[1])) stay(argv[2], group);
  group.barrier();
  std::printf("rank %d is through\n", group.rank());
}
