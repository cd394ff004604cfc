// Steps of a loop that another library synchronises on a GPU: times are those of its stream.
// Streams are the fakes', with kernels of known durations. Ranks are threads.

#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "ddprun/c_api.h"
#include "tests/fakes/fake_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/own_stream.h"
#include "tests/support/ranks.h"
#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/timer/device_phases.h"
#include "worker_sdk/timer/timer_shell.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using namespace test;
using worker_sdk::CudaStream;
using worker_sdk::ForeignSteps;
using worker_sdk::ForeignStreams;
using Phase = ForeignSteps::Phase;

constexpr int kMost = static_cast<int>(worker_sdk::DevicePhases::kMost);

void kernel(const OwnStream& stream, std::chrono::milliseconds duration) {
  enqueue(static_cast<CudaStream>(stream.get()),
          [duration] { std::promise<void>().get_future().wait_for(duration); });
}

// A step as a host sees it that never waits: all of it is put into the stream at once.
void step(ForeignSteps& steps, const OwnStream& stream, std::chrono::milliseconds waits) {
  steps.enter(Phase::kData);
  steps.enter(Phase::kForward);
  kernel(stream, 10ms);
  steps.enter(Phase::kBackward);
  kernel(stream, 20ms);
  steps.enter(Phase::kExposed);
  kernel(stream, waits);
  steps.enter(Phase::kOutside);
  steps.end_step(1000);
  steps.enter(Phase::kOptimizer);
  kernel(stream, 5ms);
  steps.enter(Phase::kOutside);
}

// What rank 0 of two leaves behind of `count` steps; the host waits after every `often` of them.
nlohmann::json summary_of(int count, int often) {
  const TemporaryDirectory directory;
  ::setenv("DDPRUN_REPORT_DIR", (directory / "").c_str(), 1);
  const Ranks ranks{.world_size = 2};
  const auto errors = ranks.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    ForeignStreams streams;
    streams.use_device(group.local_rank());
    ForeignSteps steps("");
    steps.join(ranks.options(directory / "times", group.rank()));
    steps.use_stream(streams, stream.get());
    for (int i = 1; i <= count; ++i) {
      // Rank 1 comes last: it waits for less.
      step(steps, stream, group.rank() == 0 ? 40ms : 0ms);
      if (i % often == 0) stream.synchronize();
    }
  });
  ::unsetenv("DDPRUN_REPORT_DIR");
  CHECK(outcome(errors) == "all well");
  std::ifstream file(directory / "rank0.json");
  return nlohmann::json::parse(file);
}

TEST_CASE("Foreign steps on a GPU: phases are those of the stream, not of the host", "[gpu]") {
  const FakeGpu gpu;
  constexpr int kSteps = 32;
  const int often = GENERATE(1, 16, 32);  // Also where a host is far ahead of its GPU.
  const auto summary = summary_of(kSteps, often);
  INFO(summary.dump(2));
  const double steps = kSteps;
  CHECK(summary.at("steps") == kSteps);
  CHECK(summary.at("forward_s").get<double>() >= 0.010 * steps);
  CHECK(summary.at("backward_s").get<double>() >= 0.020 * steps);
  CHECK(summary.at("optimizer_s").get<double>() >= 0.005 * (steps - 1));
  // Rank 0 stood still for 40 ms a step longer than rank 1, which a busy machine may shorten.
  CHECK(summary.at("window_steps") == kSteps);
  CHECK(summary.at("waiting_s").get<double>() >= 0.025 * steps);
}

TEST_CASE("Foreign steps on a GPU: what nobody waited for is left out, and counts as dropped",
          "[gpu]") {
  const FakeGpu gpu;
  std::promise<void> go_on;
  const TemporaryDirectory directory;
  ::setenv("DDPRUN_REPORT_DIR", (directory / "").c_str(), 1);
  const Ranks ranks{.world_size = 1};
  const auto errors = ranks.run([&](ProcessGroup& group) {
    OwnStream stream(0);
    {
      ForeignStreams streams;
      ForeignSteps steps("");
      steps.join(ranks.options(directory / "times", group.rank()));
      steps.use_stream(streams, stream.get());
      enqueue(static_cast<CudaStream>(stream.get()), [&] { go_on.get_future().wait(); });
      for (int i = 0; i < kMost + 20; ++i) step(steps, stream, 0ms);
    }
    go_on.set_value();
    stream.synchronize();
  });
  ::unsetenv("DDPRUN_REPORT_DIR");
  CHECK(outcome(errors) == "all well");
  std::ifstream file(directory / "rank0.json");
  CHECK(nlohmann::json::parse(file).at("steps") == 0);
}

TEST_CASE("Foreign steps on a GPU: an error of the program's is left to the program", "[gpu]") {
  const FakeGpu gpu;
  const OwnStream stream(0);
  ForeignStreams streams;
  leave_error(2);
  CHECK(streams.mark(stream.get()));
  CHECK(left_error() == 2);
  leave_error(0);
  break_devices(700);
  CHECK_FALSE(streams.mark(stream.get()));
  break_devices(0);
  CHECK(left_error() == 0);
}

TEST_CASE("Foreign steps on a GPU: a stream that is captured gets no marks", "[gpu]") {
  const FakeGpu gpu;
  const OwnStream stream(0);
  ForeignStreams streams;
  begin_capture(static_cast<CudaStream>(stream.get()));
  CHECK_FALSE(streams.mark(stream.get()));
  CHECK(end_capture(static_cast<CudaStream>(stream.get())).complaints.empty());
  CHECK(streams.mark(stream.get()));
}

TEST_CASE("Foreign steps on a GPU: where there is none, the C interface says so", "[gpu]") {
  ddprun_timer* timer = nullptr;
  REQUIRE(ddprun_timer_create(&timer) == DDPRUN_OK);
  ::setenv("DDPRUN_CUDART_LIB", "/nowhere/libcudart.so", 1);
  CHECK(ddprun_timer_use_stream(timer, 0, nullptr) == DDPRUN_UNSUPPORTED);
  ::unsetenv("DDPRUN_CUDART_LIB");
  CHECK(ddprun_timer_use_stream(timer, -1, nullptr) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_timer_enter(timer, DDPRUN_PHASE_DATA) == DDPRUN_OK);
  ddprun_timer_destroy(timer);
}

}  // namespace
}  // namespace ddprun
