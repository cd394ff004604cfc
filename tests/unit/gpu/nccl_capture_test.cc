// Steps that are captured in a CUDA graph, on the fakes, which note every call that would end a
// capture. Ranks are threads.

#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <future>

#include "tests/fakes/fake_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/own_stream.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;
using worker_sdk::CudaStream;

const std::vector<std::int64_t> kSizes{3, 1000, 7, 400, 1};
using Make = std::function<CommHookFactory()>;

DdpOptions with(CommHookFactory hook) {
  DdpOptions options{.first_bucket_bytes = 64, .bucket_bytes = 2000};
  options.hook = std::move(hook);
  return options;
}

std::vector<Parameter> parameters_of(Model& model) {
  auto parameters = model.parameters();
  parameters[1].shape = {20, 50};
  parameters[3].shape = {20, 20};
  return parameters;
}

// A program in a stream of its own.
struct Program {
  Program(ProcessGroup& group, const DdpOptions& options)
      : rank(group.rank()),
        stream(group.local_rank()),
        model(kSizes, 0),
        ddp((group.use_stream(stream.get()), group), parameters_of(model), options) {}

  CudaStream raw() const { return static_cast<CudaStream>(stream.get()); }
  // The kernels write what `value` is when they run.
  void step() {
    ddp.begin_forward();
    ddp.begin_backward();
    test::enqueue(raw(), [this] {
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto count = static_cast<std::size_t>(kSizes[i]);
        std::fill_n(static_cast<float*>(ddp.gradient(i).data), count,
                    value * static_cast<float>(rank + 1));
      }
    });
    for (std::size_t i = kSizes.size(); i-- > 0;) ddp.mark_ready(i);
    ddp.finish_backward();
  }
  void check(Complaints& complaints) {
    stream.synchronize();
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (const float got : test::read(ddp.gradient(i))) {
        complaints.unless(std::abs(got - 1.5F * value) < 1e-4F * value,
                          std::to_string(got) + " for " + std::to_string(value));
      }
    }
  }

  const int rank;
  OwnStream stream;
  Model model;
  DistributedDataParallel ddp;
  float value = 1;
};

// No rank may take memory while another one captures: they are one process.
using Meeting = std::barrier<>;

void capture_and_launch(ProcessGroup& group, const Make& make, Meeting& meeting,
                        Complaints& complaints) {
  Program program(group, with(make()));
  for (int s = 0; s < 3; ++s) program.step();
  program.check(complaints);
  meeting.arrive_and_wait();
  test::begin_capture(program.raw());
  program.step();
  const test::Graph graph = test::end_capture(program.raw());
  meeting.arrive_and_wait();
  complaints.unless(graph.complaints.empty(), graph.complaints);
  complaints.unless(!graph.work.empty(), "nothing was captured");
  complaints.unless(program.ddp.total().dropped == 1, "one step is not timed");
  for (const float value : {2.0F, 3.0F}) {
    program.value = value;
    graph.launch(program.raw());
    program.check(complaints);
  }
  program.value = 4;
  program.step();  // As usual.
  program.check(complaints);
}

TEST_CASE("NCCL graphs: a step is captured and launched, whatever its hook", "[nccl]") {
  const FakeGpu gpu;
  for (const Make& make : {Make(hooks::all_reduce), Make(hooks::bf16),
                           Make([] { return hooks::power_sgd({.start_step = 0}); })}) {
    Complaints complaints;
    Meeting meeting(2);
    const auto errors = Ranks{.backend = "nccl"}.run(
        [&](ProcessGroup& group) { capture_and_launch(group, make, meeting, complaints); });
    CHECK(outcome(errors) == "all well");
    CHECK(complaints.text() == "none");
  }
}

// The watch has something to look at all the while.
TEST_CASE("NCCL graphs: the watch ends no capture of the program's", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  Meeting meeting(2);
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream busy(group.local_rank()), captured(group.local_rank());
    auto memory = group.allocate(4);
    const Buffer one{memory.get(), 1, DataType::f32};
    std::promise<void> end;
    test::enqueue(static_cast<CudaStream>(busy.get()),
                  [ended = end.get_future().share()] { ended.wait(); });
    Work work = group.all_reduce_async(one, ReduceOp::sum, {.stream = busy.get()});
    meeting.arrive_and_wait();
    test::begin_capture(static_cast<CudaStream>(captured.get()));
    std::promise<void>().get_future().wait_for(std::chrono::milliseconds(200));
    const auto graph = test::end_capture(static_cast<CudaStream>(captured.get()));
    meeting.arrive_and_wait();
    complaints.unless(graph.complaints.empty(), graph.complaints);
    end.set_value();
    work.synchronize();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL graphs: the host cannot wait for what was captured, and is told so", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.world_size = 1, .backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(0);
    auto memory = group.allocate(4);
    test::begin_capture(static_cast<CudaStream>(stream.get()));
    Work work = group.all_reduce_async({memory.get(), 1, DataType::f32}, ReduceOp::sum,
                                       {.stream = stream.get()});
    complaints.unless(!work.done() && !work.error() && work.duration().count() == 0, "known");
    try {
      work.synchronize();
      complaints.unless(false, "it waited");
    } catch (const Error& error) {
      complaints.unless(error.kind() == ErrorKind::bad_argument, error.what());
    }
    work.wait();
    const auto graph = test::end_capture(static_cast<CudaStream>(stream.get()));
    complaints.unless(graph.complaints.empty(), graph.complaints);
    try {
      work.wait();
      complaints.unless(false, "a stream waited");
    } catch (const Error&) {
    }
    group.barrier();  // The group lives on.
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

// What a pass of these options throws if it is captured after so many others.
std::string refusal(const DdpOptions& options, int passes) {
  return outcome(Ranks{.world_size = 1, .backend = "nccl"}.run([&](ProcessGroup& group) {
    Program program(group, options);
    for (int s = 0; s < passes; ++s) program.step();
    program.stream.synchronize();
    test::begin_capture(program.raw());
    try {
      program.step();
    } catch (...) {
      test::end_capture(program.raw());
      program.step();  // As usual.
      program.stream.synchronize();
      throw;
    }
    test::end_capture(program.raw());
  }));
}

TEST_CASE("NCCL graphs: passes with work of the host's are refused", "[nccl]") {
  const FakeGpu gpu;
  DdpOptions options;
  CHECK_THAT(refusal(options, 0), Contains("before the buckets have their final order"));
  CHECK(refusal(options, 2) == "all well");
  options.checksum_every = 5;
  CHECK_THAT(refusal(options, 2), Contains("uneven_inputs or checksum_every"));
  options.checksum_every = 0;
  options.static_graph = true;
  CHECK_THAT(refusal(options, 2), Contains("find_unused or static_graph"));
}

// Rank 0's NCCL fails in an operation of the graph; nothing but the watch looks.
TEST_CASE("NCCL graphs: an error of NCCL's is noticed while graphs run", "[nccl]") {
  const FakeGpu gpu("async_error=0:2");
  Meeting meeting(2);
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    const auto raw = static_cast<CudaStream>(stream.get());
    const CallOptions in_stream{.stream = stream.get()};
    auto memory = group.allocate(4);
    const Buffer one{memory.get(), 1, DataType::f32};
    group.all_reduce(one, ReduceOp::sum, in_stream);
    stream.synchronize();
    meeting.arrive_and_wait();
    test::begin_capture(raw);
    group.all_reduce(one, ReduceOp::sum, in_stream);
    const auto graph = test::end_capture(raw);
    meeting.arrive_and_wait();
    graph.launch(raw);
    stream.synchronize();  // Hangs until the communicator is aborted.
    group.barrier();
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::peer_lost);
  }
}

}  // namespace
}  // namespace ddprun
