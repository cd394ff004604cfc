// The profiler plugin in a process with communicators that several threads use at once, loaded by
// the fake NCCL. Ranks are threads, and the plugin has one profile for all of them.

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "ddprun/atomic_file.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

constexpr int kTimes = 200;

void work(ProcessGroup& group) {
  const std::shared_ptr<void> array = group.allocate(4096);
  const Buffer buffer{array.get(), 1024, DataType::f32};
  for (int i = 0; i < kTimes; ++i) group.all_reduce(buffer);
  const Buffer half{array.get(), 512, DataType::f32};
  if (group.rank() == 0) group.send(half, 1);
  if (group.rank() == 1) group.recv(half, 0);
}

TEST_CASE("NCCL profiler: threads of several communicators", "[nccl]") {
  const test::TemporaryDirectory folder;
  const test::FakeGpu gpu;
  test::FakeGpu::set("RANK", "5");
  test::FakeGpu::set("DDPRUN_NCCL_WINDOWS", "0");
  test::FakeGpu::set("NCCL_PROFILER_PLUGIN", DDPRUN_PROFILER);
  test::FakeGpu::set("DDPRUN_NCCL_PROFILE", folder / "");
  const auto errors = test::Ranks{.world_size = 3, .backend = "nccl"}.run(work);
  CHECK(test::outcome(errors) == "all well");

  const auto text = read_file(folder / "nccl.rank5.json");  // Written as a communicator ends.
  REQUIRE(text);
  const auto profile = nlohmann::json::parse(*text);
  CHECK(profile.at("communicators").size() == 3);
  int messages = 0;
  for (const auto& communicator : profile.at("communicators")) {
    int reductions = 0;
    for (const auto& row : communicator.at("calls")) {
      CHECK(row.at("timed") == row.at("calls"));
      if (row.at("function") == "AllReduce" && row.at("bytes") == 4096) {
        reductions += row.at("calls").get<int>();
      }
      if (row.at("bytes") == 2048) messages += row.at("calls").get<int>();
    }
    CHECK(reductions == kTimes);
  }
  CHECK(messages == 2);
  for (const char* name :
       {"RANK", "DDPRUN_NCCL_WINDOWS", "NCCL_PROFILER_PLUGIN", "DDPRUN_NCCL_PROFILE"}) {
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace ddprun
