// What becomes of the memory of allocate() on nccl: symmetric windows where NCCL makes them, else
// registrations. The fake keeps to NCCL's rules, and ends the process if one is broken. Ranks are
// threads.

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "ddprun/c_api.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace ddprun {
namespace {

using test::Complaints;
using test::FakeGpu;
using test::Ranks;

// What the fake noted of one rank, a line each.
class Log {
 public:
  explicit Log(const std::string& faults = "")
      : gpu_("log=" + (folder_ / "log") + (faults.empty() ? "" : "," + faults)) {}

  std::string of(int rank) const {
    const std::string mine = "rank " + std::to_string(rank) + ": ";
    std::ifstream file(folder_ / "log");
    std::string text;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(mine)) text += line.substr(mine.size()) + "\n";
    }
    return text;
  }

 private:
  const test::TemporaryDirectory folder_;
  const FakeGpu gpu_;
};

void reduce(ProcessGroup& group, const std::shared_ptr<void>& memory) {
  group.all_reduce({memory.get(), 16, DataType::f32});
}

TEST_CASE("NCCL: the memory of all ranks becomes a window, which ends before the group", "[nccl]") {
  const Log log;
  const auto errors = Ranks{.world_size = 3, .backend = "nccl"}.run([](ProcessGroup& group) {
    const auto first = group.allocate(64);
    reduce(group, first);
    reduce(group, group.allocate(4096));
  });
  CHECK(test::outcome(errors) == "all well");
  for (const int r : {0, 1, 2}) {
    CHECK(log.of(r) ==
          "window of 64\nwindow of 4096\nend of the window of 64\nend of the window of 4096\n");
  }
}

TEST_CASE("NCCL: the program's current device stays what it was", "[nccl]") {
  const Log log;
  Complaints complaints;
  const test::TemporaryDirectory folder;
  const Ranks ranks{.world_size = 2, .backend = "nccl"};
  const auto errors = ranks.run([&](ProcessGroup& group) {
    const auto gpu = worker_sdk::load_gpu_runtime();
    constexpr int kPrograms = 5;  // Neither rank's.
    gpu->cuda.set_device(kPrograms);
    const auto check = [&](const char* after) {
      int now = -1;
      gpu->cuda.get_device(&now);
      complaints.unless(now == kPrograms, std::string(after) + " left " + std::to_string(now));
    };
    auto memory = group.allocate(4096);
    check("allocate");
    reduce(group, memory);
    check("all_reduce");
    auto work = group.all_reduce_async({memory.get(), 16, DataType::f32});
    check("all_reduce_async");
    work.wait();
    check("wait");
    group.zero(memory.get(), 64);
    check("zero");
    float value = 1;
    group.copy(memory.get(), &value, sizeof value);
    check("copy");
    group.barrier();
    check("barrier");
    memory.reset();
    check("the end of memory");
    auto values = group.allocate(256);
    DdpOptions options;
    options.hook = hooks::fp16();  // Which has kernels of its own.
    DistributedDataParallel ddp(group, {{"w", {values.get(), 64, DataType::f32}, {64}}}, options);
    ddp.begin_backward();
    ddp.mark_ready(0);
    ddp.finish_backward();
    check("a pass");
    auto part = group.split(0);
    check("split");
    part.reset();
    check("the end of a group");
    auto other = ProcessGroup::init(ranks.options(folder / "store", group.rank()));
    check("init");
    other = other.shrink({.lost = {}});
    check("shrink");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: a C program chooses the GPU, and by default has that of its local rank",
          "[nccl]") {
  const Log log;
  const test::TemporaryDirectory folder;
  const std::string method = "file://" + folder / "store";
  const auto device_of = [&](int given, int number) {
    ddprun_init_options options = {};
    options.size = sizeof options;
    options.device_given = given;
    options.device = number;
    options.init_method = method.c_str();
    options.backend = "nccl";
    options.world_size = 1;
    ddprun_group* group = nullptr;
    if (ddprun_group_init(&options, &group) != DDPRUN_OK) return std::string(ddprun_last_error());
    const int device = ddprun_device(group);
    ddprun_group_destroy(group);
    return std::to_string(device);
  };
  CHECK(device_of(0, 0) == "0");
  CHECK(device_of(1, 3) == "3");
  CHECK(device_of(0, 3) == "0");
  CHECK_THAT(device_of(1, 99), Catch::Contains("it requests GPU 99"));
}

TEST_CASE("NCCL: a window goes when the last rank has let go of its memory, at the same point",
          "[nccl]") {
  const Log log;
  const auto errors = Ranks{.backend = "nccl"}.run([](ProcessGroup& group) {
    auto first = group.allocate(64);
    auto second = group.allocate(128);
    if (group.rank() == 0) first.reset();
    second.reset();
    auto third = group.allocate(256);  // Ends the second: of the first only one rank is sure.
    reduce(group, third);
    first.reset();
    group.barrier();
    reduce(group, third);
  });
  CHECK(test::outcome(errors) == "all well");
  for (const int r : {0, 1}) {
    CHECK(log.of(r) ==
          "window of 64\nwindow of 128\nend of the window of 128\nwindow of 256\n"
          "end of the window of 64\nend of the window of 256\n");
  }
}

TEST_CASE("NCCL: memory may outlive its group", "[nccl]") {
  const Log log;
  std::vector<std::shared_ptr<void>> kept(2);
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    kept[static_cast<std::size_t>(group.rank())] = group.allocate(64);
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(log.of(0) == "window of 64\nend of the window of 64\n");
  kept.clear();
}

TEST_CASE("NCCL: memory is registered where there are no windows, or they are not wanted",
          "[nccl]") {
  const auto allocate = [](ProcessGroup& group) { reduce(group, group.allocate(64)); };
  for (const char* fault : {"windows=0", "version=22605"}) {
    const Log log(fault);
    CHECK(test::outcome(Ranks{.backend = "nccl"}.run(allocate)) == "all well");
    CHECK(log.of(1) == "registration of 64\n");
  }
  const Log log;
  FakeGpu::set("DDPRUN_NCCL_WINDOWS", "0");
  CHECK(test::outcome(Ranks{.backend = "nccl"}.run(allocate)) == "all well");
  ::unsetenv("DDPRUN_NCCL_WINDOWS");
  CHECK(log.of(0) == "registration of 64\n");
}

TEST_CASE("NCCL: ranks that allocate different sizes learn it at the deadline", "[nccl]") {
  const Log log;
  const auto errors = Ranks{.backend = "nccl", .op_timeout = std::chrono::milliseconds(500)}.run(
      [](ProcessGroup& group) { group.allocate(group.rank() == 0 ? 64 : 65); });
  CHECK(log.of(0).empty());  // NCCL would make windows of both, which do not fit together.
  for (const auto& error : errors) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::mismatch);
  }
}

TEST_CASE("NCCL: a lost group gives its windows back with the communicator", "[nccl]") {
  const Log log("hang=0:1");
  std::vector<std::shared_ptr<void>> kept(2);
  const auto errors = Ranks{.backend = "nccl", .op_timeout = std::chrono::milliseconds(300)}.run(
      [&](ProcessGroup& group) {
        auto& memory = kept[static_cast<std::size_t>(group.rank())];
        memory = group.allocate(64);
        reduce(group, memory);
      });
  for (const auto& error : errors) REQUIRE(error);
  kept.clear();
  CHECK(log.of(0) == "window of 64\n");
}

TEST_CASE("NCCL: a window that does not come about is given up at the deadline", "[nccl]") {
  const FakeGpu gpu("window_hang=1");
  const auto errors = Ranks{.backend = "nccl", .op_timeout = std::chrono::milliseconds(300)}.run(
      [](ProcessGroup& group) { group.allocate(64); });
  for (const auto& error : errors) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::timed_out);
    CHECK(error->where().operation.find("allocate #1") != std::string::npos);
  }
}

// The first buckets are given back when the rebuilt ones are there.
TEST_CASE("NCCL DDP: buckets live in windows, and those of the first pass end with it", "[nccl]") {
  const Log log;
  std::vector<std::string> soon(2);
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    test::Model model({10, 20}, 1);
    DistributedDataParallel ddp(group, model.parameters(), {.bucket_bytes = 2000});
    for (int step = 0; step < 2; ++step) {
      ddp.begin_backward();
      for (const std::size_t i : {0, 1}) ddp.mark_ready(i);  // Not the expected order.
      ddp.finish_backward();
    }
    soon[static_cast<std::size_t>(group.rank())] = log.of(group.rank());
  });
  CHECK(test::outcome(errors) == "all well");
  for (const std::string& text : soon) {
    INFO(text);
    const std::size_t second = text.find("\nwindow of ");
    CHECK(text.find("\nend of the window", second) != std::string::npos);
    CHECK(text.find("registration") == std::string::npos);
  }
}

}  // namespace
}  // namespace ddprun
