// Elastic jobs on the backend nccl, on the fakes of NCCL and CUDA: a fence ends what spins in a
// stream for a dead rank, and the next round has a communicator of its own.

#include "tests/process/worker_sdk/elastic_run.h"
#include "tests/support/fake_gpu.h"

namespace ddprun::test {
namespace {

const FakeGpu& gpu_of(int devices) {
  static const FakeGpu gpu("device_only=1", "devices=" + std::to_string(devices));
  return gpu;
}

TEST_CASE("NCCL, elastic: in a quiet run nothing changes", "[nccl]") {
  gpu_of(8);
  for (const int slots : {1, 2, 4}) check({.backend = "nccl", .slots = slots}, 0);
}

TEST_CASE("NCCL, elastic: the others go on where one dies, whatever it did", "[nccl]") {
  gpu_of(8);
  for (const char* point : {"body:3", "reduced:3", "commit:3", "apply:3", "committed:3",
                            "between:1", "joined:1", "settled:1", "seated:1"}) {
    for (const int slot : {0, 2}) {
      INFO(point << " in slot " << slot);
      check({.backend = "nccl", .deaths = {{{slot, 0}, point}}}, 1);
    }
  }
}

TEST_CASE("NCCL, elastic: a replacement comes into a larger communicator", "[nccl]") {
  gpu_of(8);
  for (const char* vote : {"own", "carried"}) {
    check({.backend = "nccl",
           .replacements = 1,
           .lives = 1,
           .deaths = {{{1, 0}, "reduced:3"}},
           .variables = {{"VOTE", vote}}},
          1);
  }
}

TEST_CASE("NCCL, elastic: several die at once, or all but one", "[nccl]") {
  gpu_of(8);
  using Deaths = std::map<std::pair<int, int>, std::string>;
  const std::string point = "reduced:3";
  const std::vector<Deaths> all = {
      {{{0, 0}, point}, {{1, 0}, point}},
      {{{0, 0}, point}, {{1, 0}, "body:3"}, {{3, 0}, "apply:2"}},
  };
  for (const Deaths& deaths : all) {
    const auto n = static_cast<int>(deaths.size());
    check({.backend = "nccl", .replacements = n, .lives = n, .deaths = deaths}, n);
  }
}

TEST_CASE("NCCL, elastic: a rank dies while the communicator is made", "[nccl]") {
  gpu_of(8);
  check({.backend = "nccl",
         .replacements = 1,
         .lives = 1,
         .gpus = {{{2, 0}, "device_only=1,init_exit=2"}}},
        1);
}

TEST_CASE("NCCL, elastic: sharded state, and workers that keep their part", "[nccl]") {
  gpu_of(8);
  check({.backend = "nccl",
         .replacements = 1,
         .lives = 1,
         .deaths = {{{1, 0}, "refreshed:3"}},
         .is_sharded = true},
        1);
}

}  // namespace
}  // namespace ddprun::test
