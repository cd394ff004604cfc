// DistributedDataParallel and single operations on nccl, on the fakes: with the host waiting, and
// in a stream of the caller's. Ranks are threads.

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <random>

#include "tests/fakes/fake_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/own_stream.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace test;
using worker_sdk::CudaStream;

const std::vector<std::int64_t> kSizes{3, 1000, 7, 400, 1};
const DdpOptions kSmallBuckets{.first_bucket_bytes = 64, .bucket_bytes = 2000};

enum class Mode { kHostWaits, kStream };

// All gradients after each of three passes, of every rank.
using Gradients = std::vector<std::vector<float>>;

Gradients train(ProcessGroup& group, Mode mode) {
  Gradients seen;
  std::optional<OwnStream> stream;
  if (mode == Mode::kStream) {
    stream.emplace(group.local_rank());
    group.use_stream(stream->get());
  }
  Model model(kSizes, static_cast<float>(group.rank()));
  DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
  std::mt19937 random(static_cast<std::uint32_t>(group.rank()) + 1);
  std::uniform_real_distribution<float> numbers(-1, 1);
  for (int step = 0; step < 3; ++step) {
    ddp.begin_backward();
    if (stream) stream->synchronize();
    for (std::size_t i = kSizes.size(); i-- > 0;) {
      auto* gradient = static_cast<float*>(ddp.gradient(i).data);
      for (std::size_t k = 0; k < ddp.gradient(i).count; ++k) gradient[k] = numbers(random);
      ddp.mark_ready(i);
    }
    ddp.finish_backward();
    if (stream) stream->synchronize();
    for (std::size_t i = 0; i < kSizes.size(); ++i) seen.push_back(test::read(ddp.gradient(i)));
  }
  for (const auto& array : model.arrays) seen.push_back(array);
  return seen;
}

std::vector<Gradients> train_on(const std::string& backend, Mode mode) {
  std::vector<Gradients> results(3);
  const auto errors = Ranks{.world_size = 3, .backend = backend}.run(
      [&](auto& group) { results[static_cast<std::size_t>(group.rank())] = train(group, mode); });
  CHECK(outcome(errors) == "all well");
  return results;
}

double largest_difference(const Gradients& a, const Gradients& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i][k]) - b[i][k]));
    }
  }
  return largest;
}

// To the bit only among the ranks: NCCL averages in its own way.
TEST_CASE("NCCL DDP: gradients are those of the other backends, and alike on all ranks", "[nccl]") {
  const FakeGpu gpu;
  const auto reference = train_on("gloo", Mode::kHostWaits);
  for (const Mode mode : {Mode::kHostWaits, Mode::kStream}) {
    const auto results = train_on("nccl", mode);
    for (const auto& rank : results) CHECK(rank == results.front());
    CHECK(largest_difference(results.front(), reference.front()) < 1e-6);
  }
}

TEST_CASE("NCCL DDP: parameters that no rank used are told", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    Model model({10, 20, 30}, 0);
    DdpOptions options = kSmallBuckets;
    options.find_unused = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    ddp.begin_backward();
    if (group.rank() == 0) ddp.mark_ready(2);
    ddp.mark_ready(0);
    ddp.finish_backward();
    complaints.unless(ddp.used(0) && !ddp.used(1) && ddp.used(2), "who was used");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL DDP: models that differ are refused", "[nccl]") {
  const FakeGpu gpu;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    Model model({10, group.rank() == 0 ? 20 : 21}, 0);
    DistributedDataParallel ddp(group, model.parameters());
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
  }
}

TEST_CASE("NCCL: in a stream nothing waits but the stream", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    const CallOptions in_stream{.stream = stream.get()};
    auto memory = group.allocate(4 * 5000);
    auto* words = static_cast<std::int32_t*>(memory.get());
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {  // Each reads what the stream wrote before.
      stream.set(words, 1, 4 * 5000);
      works.push_back(
          group.all_reduce_async({words, 5000, DataType::i32}, ReduceOp::sum, in_stream));
      works.back().wait();
    }
    works.back().synchronize();
    complaints.unless(works.back().done() && !works.back().error(), "done");
    complaints.unless(words[0] == 2 * 0x01010101 && words[4999] == words[0], "the sum");
    group.all_reduce({words, 5000, DataType::i32}, ReduceOp::sum, in_stream);
    stream.synchronize();
    complaints.unless(words[17] == 4 * 0x01010101, "the blocking form");
    complaints.unless(works.front().duration().count() > 0, "its duration");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: a failure that nobody waited for is thrown by the next call", "[nccl]") {
  const FakeGpu gpu("hang=0:1");
  const auto errors = Ranks{.backend = "nccl", .op_timeout = std::chrono::milliseconds(300)}.run(
      [&](ProcessGroup& group) {
        OwnStream stream(group.local_rank());
        const CallOptions in_stream{.stream = stream.get()};
        float value = 0;
        group.all_reduce(buffer(&value, 1), ReduceOp::sum, in_stream);
        stream.synchronize();  // Frees itself when the communicator is aborted.
        group.barrier();
      });
  for (const auto& error : errors) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::timed_out);
    CHECK(error->where().operation.find("all_reduce #1") != std::string::npos);
  }
}

TEST_CASE("NCCL: an error of the device is no end of an operation, and is told in CUDA's words",
          "[nccl]") {
  const FakeGpu gpu;
  std::promise<void> kernels_fall;
  const auto errors = Ranks{.world_size = 1, .backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    test::enqueue(static_cast<CudaStream>(stream.get()),
                  [fallen = kernels_fall.get_future().share()] { fallen.wait(); });
    float value = 1;
    Work work = group.all_reduce_async(buffer(&value, 1), ReduceOp::sum, {.stream = stream.get()});
    test::break_devices(700);
    kernels_fall.set_value();
    work.synchronize();
  });
  test::break_devices(0);
  REQUIRE(errors[0]);
  INFO(errors[0]->what());
  CHECK(errors[0]->text().find("CUDA: an illegal memory access") != std::string::npos);
}

TEST_CASE("NCCL: what CUDA has to tell the program is left to it", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.world_size = 1, .backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    std::promise<void> end;
    test::enqueue(static_cast<CudaStream>(stream.get()),
                  [ended = end.get_future().share()] { ended.wait(); });
    float value = 1;
    Work work = group.all_reduce_async(buffer(&value, 1), ReduceOp::sum, {.stream = stream.get()});
    complaints.unless(!work.done() && test::left_error() == 0, "an error of our own");
    test::leave_error(9);
    complaints.unless(!work.done() && test::left_error() != 0, "the program's is gone");
    test::leave_error(0);
    end.set_value();
    work.synchronize();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: a copy behind a kernel that does not end is given up at the deadline", "[nccl]") {
  const FakeGpu gpu;
  std::promise<void> end;
  auto ended = end.get_future().share();
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl", .op_timeout = std::chrono::milliseconds(300)}.run(
      [&](ProcessGroup& group) {
        auto memory = group.allocate(8);
        if (group.rank() == 0) test::enqueue(nullptr, [ended] { ended.wait(); });
        std::int64_t value = 7;
        try {
          group.copy(memory.get(), &value, sizeof(value));
          if (group.rank() == 0) complaints.unless(false, "no error of copy");
        } catch (const Error& error) {
          complaints.unless(group.rank() == 0 && error.kind() == ErrorKind::timed_out,
                            error.what());
          complaints.unless(error.where().operation == "copy of 8 bytes" &&
                                error.where().rank == 0 && !error.where().host.empty(),
                            error.what());
        }
        if (group.rank() == 1) return;
        try {
          group.zero(memory.get(), 4);
          complaints.unless(false, "no error of zero");
        } catch (const Error& error) {
          complaints.unless(error.where().operation == "zero of 4 bytes", error.what());
        }
        end.set_value();
        group.copy(&value, memory.get(), sizeof(value));  // The group is none the worse for it.
        complaints.unless(value == 0, "the zeros");
      });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

// Rank 1 is gone before rank 0's kernels come to an end: no failure.
TEST_CASE("NCCL: a rank that leaves after its part does not fail one that still computes",
          "[nccl]") {
  const FakeGpu gpu;
  std::promise<void> left;
  auto has_left = left.get_future().share();
  const test::TemporaryDirectory directory;
  const Ranks ranks{.backend = "nccl"};
  std::thread other([&] {
    {
      auto group = ProcessGroup::init(ranks.options(directory / "store", 1));
      float value = 7;
      group.send(buffer(&value, 1), 0);
    }
    left.set_value();
  });
  auto group = ProcessGroup::init(ranks.options(directory / "store", 0));
  OwnStream stream(0);
  std::promise<void> never;
  test::enqueue(static_cast<worker_sdk::CudaStream>(stream.get()), [&] {
    has_left.wait();
    never.get_future().wait_for(std::chrono::seconds(1));  // A kernel.
  });
  float value = 0;
  Work work = group.recv_async(buffer(&value, 1), 1, {.stream = stream.get()});
  other.join();
  CHECK_NOTHROW(work.synchronize());
  CHECK(value == 7);
}

TEST_CASE("NCCL: what the SDK sends of its own accord is the host's, and does not go to NCCL",
          "[nccl]") {
  const FakeGpu gpu("device_only=1");
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    complaints.unless(broadcast_bytes(group, "a", 0) == "a", "broadcast_bytes");
    complaints.unless(all_gather_bytes(group, "b").size() == 2, "all_gather_bytes");
    complaints.unless(gather_bytes(group, "c", 1).size() == (group.rank() == 1 ? 2U : 0U),
                      "gather");
    complaints.unless(average_over_ranks(group, group.rank()) == 0.5, "average_over_ranks");
    Metrics metrics;
    metrics.add("loss", 1);
    complaints.unless(metrics.reduce(group).at("loss").average == 1, "Metrics");
    (void)shared_seed(group);
    std::vector<float> part{3};
    const Buffer whole = buffer(part.data(), 1);
    complaints.unless(clip_grad_norm(group, {&whole, 1}, 100) > 4, "clip_grad_norm");
    complaints.unless(GradScaler().unscale(group, {&whole, 1}), "GradScaler");
    broadcast_shares(group, {{0}, {}}, {&whole, 1});
    Model model(kSizes, static_cast<float>(group.rank()));
    DdpOptions options = kSmallBuckets;
    options.uneven_inputs = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    ddp.join();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
  const auto refused = Ranks{.backend = "nccl"}.run([](ProcessGroup& group) {
    float value = 0;
    group.all_reduce(buffer(&value, 1));
  });
  CHECK(outcome(refused) != "all well");
}

TEST_CASE("NCCL: memory is freed when what uses it in a stream is done", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
    OwnStream stream(group.local_rank());
    auto memory = group.allocate(4000);
    std::promise<void> never;
    std::atomic<bool> done = false;
    test::enqueue(static_cast<worker_sdk::CudaStream>(stream.get()), [&] {
      never.get_future().wait_for(std::chrono::milliseconds(200));  // A kernel.
      done.store(true);
    });
    memory.reset();
    complaints.unless(done.load(), "it was freed under the kernel's feet");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: a split group has a communicator of its own", "[nccl]") {
  const FakeGpu gpu;
  Complaints complaints;
  const auto errors = Ranks{.world_size = 4, .backend = "nccl"}.run([&](ProcessGroup& group) {
    auto half = group.split(group.rank() % 2);
    float value = static_cast<float>(group.rank());
    half->all_reduce(buffer(&value, 1));
    complaints.unless(half->backend() == "nccl" && value == (group.rank() % 2 == 0 ? 2 : 4), "sum");
    std::int64_t one = 1;
    group.all_reduce(buffer(&one, 1), ReduceOp::sum, {.on_host = true});
    complaints.unless(one == 4, "on the host");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
