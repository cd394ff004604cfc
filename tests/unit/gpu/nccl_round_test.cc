// The fence of a round, where the communicator of that round is still being made.

#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <thread>

#include "tests/support/fake_gpu.h"
#include "tests/support/ranks.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;

int lines_of(const std::string& path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

TEST_CASE("NCCL, elastic: the end of a round ends a bootstrap that would not", "[nccl]") {
  const test::TemporaryDirectory folder;
  const test::FakeGpu gpu("init_hang=0,comms=" + folder / "comms", "devices=2");
  StoreHost store("127.0.0.1", std::uint16_t{0}, deadline_after(60s));
  const auto fence = std::make_shared<RoundFence>();
  const auto join = [&](int rank) -> std::string {
    InitOptions options{.backend = "nccl"};
    options.init_timeout = 24h;
    const Variables variables = {{"RANK", std::to_string(rank)},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_RANK", std::to_string(rank)},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", std::to_string(store.port())},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
    try {
      GroupInside::join(read_environment(variables, options), options, fence);
      return "joined";
    } catch (const Error& error) {
      return error.what();
    }
  };
  auto first = std::async(std::launch::async, join, 0),
       second = std::async(std::launch::async, join, 1);
  CHECK(retry_until(Clock::now() + 60s, [&] { return lines_of(folder / "comms") >= 2; }));
  fence->raise({.lost_rank = -1, .why = "a test"});
  REQUIRE(first.wait_for(40s) == std::future_status::ready);  // An attempt would take a minute.
  REQUIRE(second.wait_for(40s) == std::future_status::ready);
  CHECK_THAT(first.get(), Catch::Contains("the round is over"));
  CHECK(second.get() != "joined");
}

}  // namespace
}  // namespace ddprun::worker_sdk
