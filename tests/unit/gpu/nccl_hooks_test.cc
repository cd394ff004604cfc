// Comm hooks that compute on a GPU, on the fakes, which run the kernels' own source. Ranks are
// threads.

#include <catch2/catch.hpp>
#include <cmath>
#include <future>

#include "tests/fakes/fake_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/own_stream.h"
#include "tests/support/ranks.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;

const std::vector<std::int64_t> kSizes{3, 1000, 7, 400, 1};

DdpOptions with(CommHookFactory hook) {
  DdpOptions options{.first_bucket_bytes = 64, .bucket_bytes = 2000};
  options.hook = std::move(hook);
  return options;
}

float gradient_of(int rank, std::size_t i, std::size_t k, int step) {
  return std::sin(static_cast<float>(k * 7 + i * 3 + static_cast<std::size_t>(step)) +
                  static_cast<float>(rank));
}

float through(DataType half, float value) {
  return half == DataType::f16 ? worker_sdk::f16_to_f32(worker_sdk::f32_to_f16(value))
                               : worker_sdk::bf16_to_f32(worker_sdk::f32_to_bf16(value));
}

// As the kernels and an NCCL that sums in f32 do: each rank's share is rounded, then the sum.
float expected(DataType half, int ranks, std::size_t i, std::size_t k, int step) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += through(half, gradient_of(rank, i, k, step) * (1.0F / static_cast<float>(ranks)));
  }
  return through(half, sum);
}

void check_step(DistributedDataParallel& ddp, DataType half, int ranks, int step,
                Complaints& complaints) {
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const auto got = test::read(ddp.gradient(i));
    for (std::size_t k = 0; k < got.size(); ++k) {
      complaints.unless(got[k] == expected(half, ranks, i, k, step),
                        "gradient " + std::to_string(i) + "[" + std::to_string(k) + "]");
    }
  }
}

void train(ProcessGroup& group, DataType half, bool in_stream, Complaints& complaints) {
  std::optional<OwnStream> stream;
  if (in_stream) group.use_stream(stream.emplace(group.local_rank()).get());
  Model model(kSizes, 0);
  DistributedDataParallel ddp(group, model.parameters(),
                              with(half == DataType::f16 ? hooks::fp16() : hooks::bf16()));
  for (int step = 0; step < 3; ++step) {
    ddp.begin_backward();
    if (stream) stream->synchronize();
    for (std::size_t i = kSizes.size(); i-- > 0;) {
      auto* gradient = static_cast<float*>(ddp.gradient(i).data);
      for (std::size_t k = 0; k < ddp.gradient(i).count; ++k) {
        gradient[k] = gradient_of(group.rank(), i, k, step);
      }
      // From a thread that has never used the GPU before, too.
      std::async(std::launch::async, [&] { ddp.mark_ready(i); }).get();
    }
    ddp.finish_backward();
    if (stream) stream->synchronize();
    check_step(ddp, half, group.world_size(), step, complaints);
  }
}

TEST_CASE("NCCL hooks: fp16 and bf16 divide, round and sum, in a stream and without", "[nccl]") {
  const FakeGpu gpu;
  for (const DataType half : {DataType::f16, DataType::bf16}) {
    for (const bool in_stream : {false, true}) {
      Complaints complaints;
      const auto errors = Ranks{.world_size = 3, .backend = "nccl"}.run(
          [&](ProcessGroup& group) { train(group, half, in_stream, complaints); });
      CHECK(outcome(errors) == "all well");
      CHECK(complaints.text() == "none");
    }
  }
}

// Two of them are matrices, which PowerSGD compresses.
std::vector<Parameter> parameters_of(Model& model) {
  auto parameters = model.parameters();
  parameters[1].shape = {20, 50};
  parameters[3].shape = {20, 20};
  return parameters;
}

// A kernel of the program holds up the whole step, and no call of ours waits for it.
void step_behind_a_kernel(ProcessGroup& group, CommHookFactory hook, Complaints& complaints) {
  OwnStream stream(group.local_rank());
  group.use_stream(stream.get());
  Model model(kSizes, 0);
  DistributedDataParallel ddp(group, parameters_of(model), with(std::move(hook)));
  const auto step = [&](std::shared_future<void> begin) {
    ddp.begin_backward();
    test::enqueue(static_cast<worker_sdk::CudaStream>(stream.get()), [&, begin] {
      begin.wait();
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto count = static_cast<std::size_t>(kSizes[i]);
        std::fill_n(static_cast<float*>(ddp.gradient(i).data), count,
                    static_cast<float>(group.rank() + 1));
      }
    });
    for (std::size_t i = kSizes.size(); i-- > 0;) ddp.mark_ready(i);
    ddp.finish_backward();
  };
  std::promise<void> at_once;
  at_once.set_value();
  const auto now = at_once.get_future().share();
  for (int s = 0; s < 3; ++s) step(now);  // They take memory, and the buckets their final order.
  std::promise<void> later;
  step(later.get_future().share());
  later.set_value();  // Only now: a wait for the stream before this would last for ever.
  stream.synchronize();
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    for (const float value : test::read(ddp.gradient(i))) {
      complaints.unless(std::abs(value - 1.5F) < 1e-5F, "an average of " + std::to_string(value));
    }
  }
}

TEST_CASE("NCCL hooks: no call of a step in a stream waits for the GPU", "[nccl]") {
  const FakeGpu gpu;
  using Make = std::function<CommHookFactory()>;
  for (const Make& make : {Make(hooks::fp16), Make(hooks::bf16),
                           Make([] { return hooks::power_sgd({.start_step = 0}); }), Make([] {
                             return hooks::power_sgd({.start_step = 0, .warm_start = false});
                           })}) {
    Complaints complaints;
    const auto errors = Ranks{.backend = "nccl"}.run(
        [&](ProcessGroup& group) { step_behind_a_kernel(group, make(), complaints); });
    CHECK(outcome(errors) == "all well");
    CHECK(complaints.text() == "none");
  }
}

TEST_CASE("NCCL hooks: without kernels for the card they are refused before training", "[nccl]") {
  const FakeGpu gpu("", "kernels=none");
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    Model model({10}, 0);
    DistributedDataParallel plain(group, model.parameters());  // Needs none.
    test::pass(plain, 1, 1);
    DistributedDataParallel ddp(group, model.parameters(), with(hooks::bf16()));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::unsupported);
    CHECK_THAT(error->what(), Contains("no kernel image is available"));
  }
}

TEST_CASE("NCCL hooks: what a GPU cannot do is refused", "[nccl]") {
  const FakeGpu gpu;
  const auto refusal = [](const std::function<CommHookFactory()>& make) {
    return outcome(Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
      Model model({10}, 0);
      DistributedDataParallel ddp(group, model.parameters(), with(make()));
    }));
  };
  const auto on_host = [] {
    return hooks::custom({.name = "mine", .computes_on_host = true},
                         [](auto&, auto&, int) { return std::optional<Work>(); });
  };
  CHECK_THAT(refusal(on_host), Contains("the hook mine computes on the host"));
  CHECK_THAT(refusal([] { return hooks::power_sgd({.rank = 9}); }),
             Contains("power_sgd of rank 9: a GPU's kernels are for 8 at most"));
  CHECK(refusal([] { return hooks::power_sgd({.rank = 8}); }) == "all well");
}

TEST_CASE("NCCL hooks: a half bucket still carries who used what", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.world_size = 3, .backend = "nccl"}.run([&](ProcessGroup& group) {
    Model model({10, 20, 30}, 0);
    DdpOptions options = with(hooks::fp16());
    options.find_unused = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    ddp.begin_backward();
    if (group.rank() == 2) ddp.mark_ready(1);
    ddp.finish_backward();
    complaints.unless(!ddp.used(0) && ddp.used(1) && !ddp.used(2), "who was used");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
