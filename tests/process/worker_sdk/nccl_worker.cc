// A worker of the backend nccl that does not mind SIGTERM. system/nccl_test.py runs it on the
// fakes, gpu/run.sh on a GPU, and both check the others' errors when rank 1 is gone. nccl_worker
// STEP HOW [SECONDS [AFTER]] SECONDS: the deadline of an operation. HOW: what rank 1 does at that
// step: "die", "stop", or "orphan": it leaves its connections to a child and dies. In the next
// round it does nothing, and all is well. AFTER: the others go on in a smaller group, of NCCL's own
// ("shrink") or joined anew ("anew"), and sum up there.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;

long long ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

void fall_out(std::string_view how) {
  if (how == "stop") ::raise(SIGSTOP);
  // No connection ends while the child has it, too.
  if (how == "orphan" && ::fork() == 0) {
    for (;;) ::pause();
  }
  ::kill(::getpid(), SIGKILL);
}

void train(ddprun::ProcessGroup& group, int last, std::string_view how) {
  constexpr std::size_t kCount = 1 << 18;
  const auto memory = group.allocate(kCount * sizeof(float));
  const bool again = group.restart_count() > 0;
  for (int step = 0; !again || step < last; ++step) {
    if (!again && step == last && group.rank() == 1) fall_out(how);
    group.all_reduce({memory.get(), kCount, ddprun::DataType::f32});
  }
}

// How long from the notice of a lost rank until the others have summed up without it.
void go_on(ddprun::ProcessGroup& group, int lost) {
  const auto begin = Clock::now();
  auto rest = group.shrink({.lost = {lost}});
  constexpr std::size_t kCount = 1 << 18;
  const std::vector<float> mine(kCount, static_cast<float>(rest.rank() + 1));
  std::vector<float> sum(kCount);
  const auto memory = rest.allocate(kCount * sizeof(float));
  rest.copy(memory.get(), mine.data(), kCount * sizeof(float));
  rest.all_reduce({memory.get(), kCount, ddprun::DataType::f32});
  rest.copy(sum.data(), memory.get(), kCount * sizeof(float));
  const auto took = ms_since(begin);
  const auto n = static_cast<float>(rest.world_size());
  const bool right = sum.front() == n * (n + 1) / 2 && sum.back() == sum.front();
  std::printf("rank %d: goes on with %d ranks after %lld ms, %s\n", group.rank(), rest.world_size(),
              took, right ? "and sums are right" : "and sums are WRONG");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  ::signal(SIGTERM, SIG_IGN);
  const std::string_view after = argc > 4 ? argv[4] : "";
  const auto begin = Clock::now();
  auto group = ddprun::ProcessGroup::init(
      {.backend = "nccl",
       .nccl = {.may_shrink = after == "shrink"},
       .op_timeout = std::chrono::seconds(argc > 3 ? std::atoi(argv[3]) : 600)});
  auto pair = group.split(group.rank() == 0 ? 0 : 1);  // The second has rank 1 in it.
  std::printf("rank %d: joined twice in %lld ms, restart %d\n", group.rank(), ms_since(begin),
              group.restart_count());
  std::fflush(stdout);
  try {
    train(group, std::atoi(argv[1]), argv[2]);
    return 0;
  } catch (const ddprun::Error& error) {
    std::printf("rank %d: peer %d, waited %lld ms, kind %d: %s\n", group.rank(), error.where().peer,
                static_cast<long long>(error.where().waited.count()),
                static_cast<int>(error.kind()), error.what());
    if (!after.empty()) go_on(group, error.where().peer);
  }
  std::fflush(stdout);
  try {
    pair->barrier();
  } catch (const ddprun::Error& error) {
    std::printf("sibling of rank %d: %s\n", group.rank(), error.what());
  }
  return 5;
}
