// Ranks of nccl that are killed, or that must end themselves: as processes, on the fakes.

#include <catch2/catch.hpp>

#include "tests/support/fake_gpu.h"
#include "tests/support/forked_ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::FakeGpu;
using test::ForkedRanks;

test::Ranks nccl(int world_size, std::chrono::milliseconds op_timeout) {
  return {.world_size = world_size, .backend = "nccl", .op_timeout = op_timeout};
}

void reduce(ProcessGroup& group) {
  std::vector<float> values(1000, 1);
  group.all_reduce(buffer(values.data(), values.size()));
}

// NCCL alone would wait for ever here, and so does the fake.
TEST_CASE("NCCL: who waits for a killed rank is told its name soon", "[nccl]") {
  const FakeGpu gpu;
  ForkedRanks ranks(nccl(3, 50s), [](ProcessGroup& group, const auto& ready) {
    reduce(group);
    ready();
    for (;;) {
      if (group.rank() == 1) ::pause();
      reduce(group);
    }
  });
  for (const int r : {0, 1, 2}) REQUIRE(ranks.wait_ready(r));
  ranks.signal(1, SIGKILL);
  for (const int r : {0, 2}) {
    const test::Report report = ranks.report(r);
    INFO(report.text);
    REQUIRE(report.threw);
    CHECK(report.kind == ErrorKind::peer_lost);
    CHECK(report.peer == 1);
  }
}

TEST_CASE("NCCL: an abort that never returns ends the process", "[nccl]") {
  const FakeGpu gpu("hang=0:1,abort_hang=0");
  ForkedRanks ranks(nccl(2, 300ms), [](ProcessGroup& group, const auto&) { reduce(group); });
  CHECK_FALSE(ranks.report(0).came);  // It went without a word on this pipe; 76 is its status.
  CHECK(ranks.report(1).threw);
}

// The second loss is found by the others' attempt, and left behind by the next one.
TEST_CASE("NCCL: a rank that dies in the shrink is left behind, too", "[nccl]") {
  const FakeGpu gpu("hang=1:2,shrink_exit=2");
  test::TemporaryDirectory directory;
  test::Ranks ranks{.world_size = 4, .backend = "nccl", .op_timeout = 50s};
  ranks.init_timeout = 5s;
  test::ForkedRanks forked(
      4,
      [&](int rank) {
        InitOptions options = ranks.options(directory / "store", rank);
        options.nccl.may_shrink = true;
        return options;
      },
      [](ProcessGroup& group, const auto&) {
        float value = 1;
        try {
          group.all_reduce(buffer(&value, 1));
          group.all_reduce(buffer(&value, 1), ReduceOp::sum, {.timeout = 300ms});
        } catch (const Error&) {
        }
        if (group.rank() == 1) return;
        auto next = group.shrink({.lost = {1}, .patience = 3s});
        std::int64_t sum = 1;
        next.all_reduce(buffer(&sum, 1), ReduceOp::sum, {.on_host = true});
        value = 1;
        next.all_reduce(buffer(&value, 1));
        if (sum != 2 || value != 2) throw Error(ErrorKind::system, {}, "the sum");
      });
  for (const int r : {0, 3}) {
    const test::Report report = forked.report(r);
    INFO(report.text);
    CHECK((report.came && !report.threw));
  }
  CHECK_FALSE(forked.report(2).came);
}

}  // namespace
}  // namespace ddprun
