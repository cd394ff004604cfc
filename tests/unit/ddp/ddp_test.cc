// DistributedDataParallel over real process groups; ranks are threads.

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "worker_sdk/ddp/agreement.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;
using worker_sdk::difference;
using worker_sdk::hash_of;
using worker_sdk::reference_rank;
using worker_sdk::signature;

const std::vector<std::int64_t> kSizes{3, 1000, 7, 400, 1};
const DdpOptions kSmallBuckets{.first_bucket_bytes = 64, .bucket_bytes = 2000};

void averages(const std::string& backend, int world_size) {
  Complaints complaints;
  const auto errors = Ranks{.world_size = world_size, .backend = backend}.run([&](auto& group) {
    Model model(kSizes, static_cast<float>(group.rank()));
    DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
    for (const auto& array : model.arrays) {
      complaints.unless(array == std::vector<float>(array.size(), 0), "values are not rank 0's");
    }
    for (int step = 1; step <= 3; ++step) {
      ddp.zero_gradients();
      pass(ddp, kSizes.size(), static_cast<float>(step * (group.rank() + 1)));
      const float mean = static_cast<float>(step) * static_cast<float>(group.world_size() + 1) / 2;
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto gradient = read(ddp.gradient(i));
        complaints.unless(gradient == std::vector<float>(gradient.size(), mean),
                          "gradient " + std::to_string(i) + " is " + std::to_string(gradient[0]) +
                              ", not " + std::to_string(mean));
      }
    }
    complaints.unless(ddp.buckets().size() == 3, "buckets");
    complaints.unless(ddp.total().steps == 3 && ddp.total().buckets == 9, "counts");
    complaints.unless(ddp.last_step().bytes >= 4 * 1411, "bytes");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace

TEST_CASE("DDP: values come from rank 0 and gradients become their mean, on shm") {
  averages("shm", 2);
  averages("shm", 3);
}

TEST_CASE("DDP: values come from rank 0 and gradients become their mean, on gloo") {
  averages("gloo", 2);
}

TEST_CASE("DDP: a world of one keeps its gradients") { averages("auto", 1); }

TEST_CASE("DDP: gradients are aligned views of zeroed memory that outlives the object") {
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model(kSizes, 1);
    std::shared_ptr<void> memory;
    Buffer gradient;
    {
      DistributedDataParallel ddp(group, model.parameters(), kSmallBuckets);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto address = reinterpret_cast<std::uintptr_t>(ddp.gradient(i).data);
        if (address % 16 != 0 || read(ddp.gradient(i))[0] != 0) {
          throw Error(ErrorKind::bad_argument, {}, "misaligned or not zero");
        }
      }
      memory = ddp.gradient_memory(1);
      gradient = ddp.gradient(1);
    }
    add(gradient, 1);
    if (read(gradient) != std::vector<float>(1000, 1)) {
      throw Error(ErrorKind::bad_argument, {}, "memory is gone");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("DDP: in no_sync gradients stay here, and the next pass averages the sums") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({10, 10}, 0);
    DistributedDataParallel ddp(group, model.parameters());
    const float mine = static_cast<float>(1 + group.rank());  // 1 and 2.
    {
      const auto guard = ddp.no_sync();
      complaints.unless(!ddp.synchronises(), "synchronises in no_sync");
      pass(ddp, 2, mine);
      pass(ddp, 2, mine);
      complaints.unless(read(ddp.gradient(0))[0] == 2 * mine, "communicated in no_sync");
    }
    complaints.unless(ddp.synchronises(), "no_sync does not end");
    pass(ddp, 2, mine);
    complaints.unless(read(ddp.gradient(0))[0] == 4.5F, "the sum was not averaged");
    complaints.unless(ddp.total().steps == 1, "no_sync passes were counted");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

// The first element while the bucket may be in work: a race, which is what the test below is about.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
__attribute__((noinline)) float
peek(const Buffer& gradient) {
  return *static_cast<const volatile float*>(gradient.data);
}

TEST_CASE("DDP: a bucket is reduced while the backward pass still runs") {
  // Rank 0 stops in the middle of its pass until it sees the mean in the bucket that was full
  // first.
  std::atomic<bool> seen{false};
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({100, 100}, 0);
    DistributedDataParallel ddp(group, model.parameters(),
                                {.first_bucket_bytes = 1, .bucket_bytes = 1});
    pass(ddp, 2, 0);  // The first pass holds its buckets.
    ddp.begin_backward();
    add(ddp.gradient(1), static_cast<float>(2 * group.rank()));
    ddp.mark_ready(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (group.rank() == 0 && !seen && std::chrono::steady_clock::now() < deadline) {
      seen = peek(ddp.gradient(1)) == 1.0F;
      std::this_thread::yield();
    }
    ddp.mark_ready(0);
    ddp.finish_backward();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(seen);
}

TEST_CASE("DDP: ranks whose gradients arrive in different orders still agree") {
  Complaints complaints;
  const std::vector<std::int64_t> sizes(23, 50);
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model(sizes, 0);
    DistributedDataParallel ddp(group, model.parameters(),
                                {.first_bucket_bytes = 100, .bucket_bytes = 700});
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int step = 0; step < 50; ++step) {
      std::shuffle(order.begin(), order.end(), random);
      ddp.zero_gradients();
      ddp.begin_backward();
      for (const std::size_t i : order) {
        add(ddp.gradient(i), static_cast<float>(i) + static_cast<float>(group.rank()));
        ddp.mark_ready(i);
      }
      ddp.finish_backward();
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        complaints.unless(std::abs(read(ddp.gradient(i))[49] - static_cast<float>(i + 1)) < 1e-5F,
                          "wrong mean");
      }
    }
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: misuse is named, and the next pass works") {
  std::string twice;
  std::string missing, begun, full;
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model({1, 1, 1}, 0);
    DistributedDataParallel ddp(group, model.parameters());
    const auto text_of = [&](const auto& body) -> std::string {
      try {
        body();
      } catch (const Error& e) {
        return (e.kind() == ErrorKind::bad_argument ? "" : "wrong kind: ") + std::string(e.what());
      }
      return "nothing";
    };
    ddp.begin_backward();
    ddp.mark_ready(1);
    twice = text_of([&] { ddp.mark_ready(1); });
    begun = text_of([&] { ddp.begin_backward(); });
    missing = text_of([&] { ddp.finish_backward(); });
    pass(ddp, 3, 1);
    ddp.begin_backward();
    for (std::size_t i = 0; i < 3; ++i) ddp.mark_ready(i);
    full = text_of([&] { ddp.begin_backward(); });
    ddp.finish_backward();
  });
  CHECK(outcome(errors) == "all well");
  CHECK_THAT(begun, Contains("not yet ready: layer0, layer2"));
  CHECK_THAT(full, Contains("all gradients are ready") && !Contains(": :"));
  CHECK_THAT(twice, Contains("layer1") && Contains("twice") && !Contains("wrong kind"));
  CHECK_THAT(missing, Contains("2 of 3") && Contains("layer0, layer2") && Contains("rank 0"));
}

TEST_CASE("DDP: what cannot be trained is refused before anything is communicated") {
  const auto text_for = [](Parameter parameter) {
    return outcome(Ranks{.world_size = 1}.run(
        [&](ProcessGroup& group) { DistributedDataParallel(group, {parameter}); }));
  };
  float value = 0;
  std::int64_t integer = 0;
  CHECK_THAT(text_for({"step", buffer(&integer, 1), {1}}), Contains("step is of type i64"));
  CHECK_THAT(text_for({"w", buffer(&value, 1), {2, 3}}), Contains("1 elements, but its shape 6"));
  CHECK_THAT(text_for({"w", {nullptr, 1, DataType::f32}, {1}}), Contains("no value"));
  const auto none =
      Ranks{.world_size = 1}.run([](ProcessGroup& group) { DistributedDataParallel(group, {}); });
  CHECK_THAT(outcome(none), Contains("no parameters"));
}

TEST_CASE("DDP: a model that differs on one rank is reported with its name on every rank") {
  const auto run = [](const std::function<void(int rank, Model&, DdpOptions&)>& spoil) {
    return Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
      Model model({5, 6, 7}, 0);
      DdpOptions options;
      spoil(group.rank(), model, options);
      DistributedDataParallel ddp(group, model.parameters(), options);
    });
  };
  const auto require_all = [](const auto& errors, const std::string& text) {
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::mismatch);
      CHECK_THAT(error->what(), Contains(text));
    }
  };
  SECTION("by a shape on the last rank") {
    const auto errors = run([](int rank, Model& m, DdpOptions&) {
      if (rank == 2) m.arrays[1].resize(60);
    });
    require_all(errors, "has parameter 1 'layer1' f32 [60] instead of 'layer1' f32 [6]");
    CHECK(errors[0]->where().peer == 2);
    CHECK_THAT(errors[0]->what(), Contains("rank 2 (") && Contains("compared with rank 0"));
  }
  SECTION("by a shape on rank 0: the majority is right") {
    const auto errors = run([](int rank, Model& m, DdpOptions&) {
      if (rank == 0) m.arrays[0].resize(1);
    });
    require_all(errors, "'layer0' f32 [1] instead of 'layer0' f32 [5]");
    CHECK(errors[1]->where().peer == 0);
  }
  SECTION("by names alone: two parameters of one shape are swapped") {
    const auto errors = Ranks{.world_size = 3}.run([](ProcessGroup& group) {
      Model model({5, 5}, 0);
      auto parameters = model.parameters();
      if (group.rank() == 1) std::swap(parameters[0], parameters[1]);
      DistributedDataParallel ddp(group, parameters);
    });
    require_all(errors, "has parameter 0 'layer1' f32 [5] instead of 'layer0' f32 [5]");
    CHECK(errors[2]->where().peer == 1);
  }
  SECTION("by their number") {
    require_all(run([](int rank, Model& m, DdpOptions&) {
                  if (rank == 1) m.arrays.pop_back();
                }),
                "has 2 parameters instead of 3 ('layer2' is the first that is missing)");
  }
  SECTION("by an option") {
    require_all(run([](int rank, Model&, DdpOptions& o) {
                  if (rank == 1) o.bucket_bytes = 77;
                }),
                "has option bucket_bytes 77 instead of bucket_bytes 26214400");
  }
}

TEST_CASE("Agreement: names, types and shapes count") {
  float x[6];
  const auto lines = [&](const std::string& name, DataType type, std::vector<std::int64_t> shape) {
    return signature({{name, {x, 6, type}, shape}}, {}, "all_reduce");
  };
  const auto base = lines("a", DataType::f32, {2, 3});
  CHECK(hash_of(base) == hash_of(lines("a", DataType::f32, {2, 3})));
  CHECK_FALSE(difference(base, lines("a", DataType::f32, {2, 3})));
  CHECK(hash_of(base) != hash_of(lines("b", DataType::f32, {2, 3})));
  CHECK_THAT(difference(base, lines("b", DataType::f32, {2, 3})).value(),
             Contains("'a' f32 [2, 3] instead of 'b' f32 [2, 3]"));
  CHECK(hash_of(base) != hash_of(lines("a", DataType::f16, {2, 3})));
  CHECK(hash_of(base) != hash_of(lines("a", DataType::f32, {3, 2})));
  CHECK_THAT(difference(base, lines("b", DataType::f32, {3, 2})).value(),
             Contains("'a' f32 [2, 3] instead of 'b' f32 [3, 2]"));
}

TEST_CASE("Agreement: the reference is the lowest rank of the largest party") {
  CHECK(reference_rank({7, 7, 7}) == 0);
  CHECK(reference_rank({1, 7, 7}) == 1);
  CHECK(reference_rank({1, 2}) == 0);
  CHECK(reference_rank({1, 2, 3, 2, 3}) == 1);
}

}  // namespace ddprun
