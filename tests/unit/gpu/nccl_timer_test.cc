// The sync timer by CUDA events: DistributedDataParallel in a stream of the fakes, with kernels of
// known durations. Ranks are threads.

#include <catch2/catch.hpp>
#include <future>

#include "tests/fakes/fake_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/own_stream.h"
#include "tests/support/ranks.h"
#include "worker_sdk/nccl/nccl_pending.h"
#include "worker_sdk/timer/device_phases.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using namespace test;

const std::vector<std::int64_t> kSizes{3, 1000, 7, 400, 1};
const DdpOptions kSmallBuckets{.first_bucket_bytes = 64, .bucket_bytes = 2000};
constexpr int kLag = static_cast<int>(worker_sdk::DevicePhases::kLag);

void kernel(const OwnStream& stream, std::function<void()> work) {
  test::enqueue(static_cast<worker_sdk::CudaStream>(stream.get()), std::move(work));
}

void kernel(const OwnStream& stream, std::chrono::milliseconds duration) {
  kernel(stream, [duration] { std::promise<void>().get_future().wait_for(duration); });
}

// One step of a program; `backward` puts its kernels into the stream.
void step(DistributedDataParallel& ddp, const std::function<void()>& backward) {
  ddp.begin_backward();
  backward();
  for (std::size_t i = kSizes.size(); i-- > 0;) ddp.mark_ready(i);
  ddp.finish_backward();
}

void nothing() {}

int made = 0, destroyed = 0;

TEST_CASE("Events: one that nobody needs any more is used again, on its device and of its kind") {
  worker_sdk::CudaApi cuda;
  cuda.get_device = [](int* device) { return *device = 0, 0; };
  cuda.set_device = [](int) { return 0; };
  cuda.event_create = [](worker_sdk::CudaEvent* event, unsigned) {
    *event = reinterpret_cast<worker_sdk::CudaEvent>(static_cast<std::uintptr_t>(++made));
    return 0;
  };
  cuda.event_destroy = [](worker_sdk::CudaEvent) { return ++destroyed, 0; };
  made = destroyed = 0;
  auto gpu = std::make_shared<worker_sdk::GpuRuntime>();
  gpu->cuda = cuda;
  gpu->events = std::make_shared<worker_sdk::GpuEventPool>(cuda);
  const auto two_at_once = [&](int device, unsigned flags) {
    const worker_sdk::GpuEvent one(gpu, device, flags), two(gpu, device, flags);
  };
  for (int i = 0; i < 100; ++i) two_at_once(0, worker_sdk::kCudaEventDefault);
  CHECK(made == 2);
  two_at_once(0, worker_sdk::kCudaEventDisableTiming);
  CHECK(made == 4);
  two_at_once(1, worker_sdk::kCudaEventDefault);
  CHECK(made == 6);
  CHECK(destroyed == 0);
  gpu->events.reset();
  CHECK(destroyed == 6);
}

TEST_CASE("NCCL timer: phases are those of the stream, not of the host", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    group.use_stream(stream.get());
    Model model(kSizes, 0);
    DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
    for (int s = 0; s < 3; ++s) {
      kernel(stream, 5ms);
      ddp.begin_forward();
      kernel(stream, 10ms);
      step(ddp, [&] { kernel(stream, 20ms); });
      stream.synchronize();
    }
    complaints.unless(ddp.total().steps == 0, "it is too early to know");
    for (int s = 0; s < kLag; ++s) step(ddp, nothing), stream.synchronize();
    const SyncReport& sum = ddp.total();
    // The first step has no beginning in the stream.
    complaints.unless(sum.steps == 3 && sum.dropped == 0, "three steps");
    complaints.unless(sum.outside >= 10ms, "outside");
    complaints.unless(sum.forward >= 30ms, "forward");
    complaints.unless(sum.backward >= 60ms, "backward");
    complaints.unless(sum.comm > 0ns && sum.exposed > 0ns, "comm");
    complaints.unless(ddp.trace().find("bucket 1") != std::string::npos, "the trace");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL timer: a wait for a late rank is in the times of the others", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  std::vector<std::promise<void>> reached(3 + kLag);
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    group.use_stream(stream.get());
    Model model(kSizes, 0);
    DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
    for (std::size_t s = 0; s < 3 + kLag; ++s) {
      step(ddp, [&] {
        if (group.rank() == 0) return kernel(stream, [&reached, s] { reached[s].set_value(); });
        kernel(stream, [&reached, s] { reached[s].get_future().wait(); });
        kernel(stream, 30ms);
      });
      stream.synchronize();
    }
    const SyncReport& sum = ddp.total();
    complaints.unless(sum.steps == 3, "three steps");
    complaints.unless(sum.backward + sum.exposed >= 90ms, "what was waited");
    if (group.rank() == 1) complaints.unless(sum.backward >= 90ms, "the late rank's backward");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

// The GPU stands still: whatever waited for it would wait for ever.
TEST_CASE("NCCL timer: it never waits for the GPU; what is not known in time is counted",
          "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    group.use_stream(stream.get());
    Model model(kSizes, 0);
    DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
    for (int s = 0; s < 2; ++s) step(ddp, nothing), stream.synchronize();  // Buckets are rebuilt.
    std::promise<void> gate;
    kernel(stream, [opened = gate.get_future().share()] { opened.wait(); });
    for (int s = 0; s < kLag + 3; ++s) step(ddp, nothing);
    complaints.unless(ddp.total().steps == 2 && ddp.total().dropped == 3, "three are dropped");
    gate.set_value();
    stream.synchronize();
    for (int s = 0; s < kLag; ++s) step(ddp, nothing), stream.synchronize();
    complaints.unless(ddp.total().steps == 2 + kLag && ddp.total().dropped == 3, "known later");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL timer: ranks exchange windows, some steps later; without a stream, too", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    if (group.rank() == 0) group.use_stream(stream.get());  // One may, the other not.
    Model model(kSizes, 0);
    DdpOptions options = kSmallBuckets;
    options.timer.window = 4;
    DistributedDataParallel ddp(group, model.parameters(), options);
    for (int s = 0; s < kLag + 7; ++s) step(ddp, nothing), stream.synchronize();
    complaints.unless(ddp.last_window().has_value(), "a window");
    if (!ddp.last_window()) return;
    complaints.unless(ddp.last_window()->steps + ddp.last_window()->dropped == 4, "its steps");
    complaints.unless(ddp.last_window()->steps > 0, "known ones");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
