// Comm hooks and the optimizer in the backward pass.

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/model.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;

DdpOptions with(CommHookFactory hook) {
  DdpOptions options{.first_bucket_bytes = 64, .bucket_bytes = 200};
  options.hook = std::move(hook);
  return options;
}

// The largest relative error of three steps' means.
double error_of(const CommHookFactory& hook) {
  std::vector<double> worst(2, 0);
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({30, 7, 100, 3}, 0);
    DistributedDataParallel ddp(group, model.parameters(), with(hook));
    for (int step = 0; step < 3; ++step) {
      ddp.zero_gradients();
      const float mine = group.rank() == 0 ? 1.00073F : 0.3337F;
      pass(ddp, 4, mine);
      for (std::size_t i = 0; i < 4; ++i) {
        for (const float x : read(ddp.gradient(i))) {
          auto& w = worst[static_cast<std::size_t>(group.rank())];
          w = std::max(w, std::abs(static_cast<double>(x) / 0.667215 - 1));
        }
      }
    }
  });
  CHECK(outcome(errors) == "all well");
  return std::max(worst[0], worst[1]);
}

}  // namespace

TEST_CASE("Hooks: each averages as exactly as its type can") {
  CHECK(error_of(hooks::all_reduce()) < 1e-6);
  CHECK(error_of(hooks::fp16()) < 2e-3);
  CHECK(error_of(hooks::fp16()) > 1e-6);  // It did send halves.
  CHECK(error_of(hooks::bf16()) < 1e-2);
  CHECK(error_of(hooks::bf16()) > 1e-4);
  CHECK(error_of(hooks::power_sgd({.start_step = 0})) < 1e-6);  // Vectors only.
}

TEST_CASE("Hooks: noop leaves each rank its own gradients") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({5}, 0);
    DistributedDataParallel ddp(group, model.parameters(), with(hooks::noop()));
    pass(ddp, 1, static_cast<float>(group.rank() + 7));
    if (read(ddp.gradient(0))[0] != static_cast<float>(group.rank() + 7)) {
      throw Error(ErrorKind::mismatch, {}, "changed");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Hooks: a user's hook sees every bucket once a step, in order, and may scale") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({30, 7, 100}, 0);
    std::string seen;
    const auto ten_times_the_sum = [&](ProcessGroup& g, GradientBucket& b,
                                       int step) -> std::optional<Work> {
      if (step == 1) {
        for (std::size_t i = 0; i < b.flat.count; ++i) static_cast<float*>(b.flat.data)[i] *= 10;
        return {};
      }
      seen += std::to_string(b.index) + (b.last ? "! " : " ");
      for (const auto& piece : b.pieces) seen += std::to_string(piece.parameter) + ",";
      return g.all_reduce_async(b.flat, ReduceOp::sum);
    };
    DistributedDataParallel ddp(group, model.parameters(),
                                with(hooks::custom({.name = "ten times"}, ten_times_the_sum)));
    pass(ddp, 3, static_cast<float>(1 + group.rank()));
    complaints.unless(seen == "0 2,1! 1,0,", "saw " + seen);
    complaints.unless(read(ddp.gradient(1))[6] == 30, "value");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("Hooks: ranks with different hooks are told before they exchange anything") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({5}, 0);
    DistributedDataParallel(group, model.parameters(),
                            with(group.rank() == 0 ? hooks::fp16() : hooks::bf16()));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THAT(error->what(), Contains("rank 1") && Contains("hook bf16 instead of hook f16"));
  }
}

TEST_CASE("Hooks: what a hook throws ends the step, and the error is the hook's") {
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model({5}, 0);
    const auto broken =
        hooks::custom({.name = "broken"}, [](auto&, auto&, int) -> std::optional<Work> {
          throw Error(ErrorKind::unsupported, {}, "not today");
        });
    DistributedDataParallel ddp(group, model.parameters(), with(broken));
    pass(ddp, 1, 1);
  });
  CHECK_THAT(outcome(errors), Contains("not today"));
}

namespace {

// Three collectives a bucket: the sum of all ranks, doubled twice by sums of sums. Writes down each
// step, and how often its bucket has been seen before.
class Thrice final : public CommHook {
 public:
  explicit Thrice(std::string& seen)
      : CommHook({.name = "thrice", .collectives = 3, .computes_on_host = true}), seen_(seen) {}

  std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
    if (!bucket.state.has_value()) bucket.state = 0;
    if (step == 0) std::any_cast<int&>(bucket.state) += 1;
    seen_ += std::to_string(bucket.index) + "." + std::to_string(step) + "x" +
             std::to_string(std::any_cast<int>(bucket.state)) + " ";
    if (step == 3 || (step == 1 && bucket.index == 1)) return {};
    return group.all_reduce_async(bucket.flat, ReduceOp::sum);
  }

 private:
  std::string& seen_;
};

}  // namespace

TEST_CASE("Hooks: the steps of all buckets come in rounds, and a bucket may be done earlier") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    std::string seen;
    std::string reduced;
    Model model({30, 60, 100}, 0);
    DistributedDataParallel ddp(group, model.parameters(), with([&](ProcessGroup&) {
                                  return std::make_unique<Thrice>(seen);
                                }));
    ddp.on_bucket_reduced([&](const GradientBucket& b) { reduced += std::to_string(b.index); });
    pass(ddp, 3, 1);
    complaints.unless(seen == "0.0x1 1.0x1 2.0x1 0.1x1 1.1x1 2.1x1 0.2x1 2.2x1 0.3x1 2.3x1 ",
                      "saw " + seen);
    complaints.unless(reduced == "012", "reduced " + reduced);
    complaints.unless(read(ddp.gradient(2))[0] == 8, "three sums");
    complaints.unless(read(ddp.gradient(1))[0] == 2, "one sum");
    seen.clear();
    ddp.zero_gradients();
    pass(ddp, 3, 1);
    complaints.unless(seen.starts_with("0.0x2 1.0x2 2.0x2 0.1x2"), "then saw " + seen);
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("Hooks: each wrapper has its own, made for its group") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    std::vector<ProcessGroup*> made;
    const auto hook = with([&](ProcessGroup& g) {
      made.push_back(&g);
      return hooks::fp16()(g);
    });
    Model model({5}, 0);
    DistributedDataParallel first(group, model.parameters(), hook);
    DistributedDataParallel second(group, model.parameters(), hook);
    first.reconfigure(group);
    if (made.size() != 3 || made[0] == made[1] || made[2] != made[0] || made[0] == &group) {
      throw Error(ErrorKind::mismatch, {}, "made of " + std::to_string(made.size()));
    }
    pass(first, 1, 1);
    pass(second, 1, 1);
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Hooks: more collectives than its traits have, and no hook at all, are refused") {
  const auto refusal = [](const CommHookFactory& hook) {
    return outcome(Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
      Model model({5}, 0);
      DistributedDataParallel ddp(group, model.parameters(), with(hook));
      pass(ddp, 1, 1);
    }));
  };
  const auto for_ever = hooks::custom({.name = "long", .collectives = 2},
                                      [](ProcessGroup& g, GradientBucket& b, int) {
                                        return std::optional(g.all_reduce_async(b.flat));
                                      });
  CHECK_THAT(refusal(for_ever), Contains("the hook long starts more than the 2 collectives"));
  CHECK_THAT(refusal([](ProcessGroup&) { return nullptr; }), Contains("returns no hook"));
  CHECK_THROWS_WITH(hooks::custom({.name = "empty"}, {}), Contains("the function is empty"));
  CHECK_THROWS_WITH(hooks::custom({.name = "none", .collectives = 0},
                                  [](auto&, auto&, int) { return std::optional<Work>(); }),
                    Contains("no collectives"));
}

TEST_CASE("Hooks: compressed buckets still carry who used what") {
  for (const CommHookFactory& hook :
       {hooks::bf16(), hooks::fp16(), hooks::power_sgd({.start_step = 1})}) {
    const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
      Model model({30, 7, 100}, 0);
      DdpOptions options = with(hook);
      options.find_unused = true;
      DistributedDataParallel ddp(group, model.parameters(), options);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_gradients();
        ddp.begin_backward();
        if (group.rank() == 2) {
          add(ddp.gradient(1), 3);
          ddp.mark_ready(1);
        }
        ddp.finish_backward();
        const bool right = ddp.used(1) && !ddp.used(0) && !ddp.used(2);
        if (!right || std::abs(read(ddp.gradient(1))[0] - 1) > 0.01F) {
          throw Error(ErrorKind::mismatch, {}, "step " + std::to_string(step));
        }
      }
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("Optimizer in backward: each bucket's callback sees the average once, in launch order") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({30, 7, 100}, 0);
    DistributedDataParallel ddp(group, model.parameters(),
                                {.first_bucket_bytes = 1, .bucket_bytes = 1});
    std::vector<std::size_t> order;
    ddp.on_bucket_reduced([&](const GradientBucket& bucket) {
      for (const auto& piece : bucket.pieces) {
        order.push_back(piece.parameter);
        auto& values = model.arrays[piece.parameter];
        const auto gradient = read(piece.gradient);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] -= gradient[i];
      }
    });
    for (int step = 0; step < 4; ++step) {
      ddp.zero_gradients();
      pass(ddp, 3, static_cast<float>(group.rank()));
    }
    complaints.unless(order == std::vector<std::size_t>{2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0},
                      "order");
    for (const auto& array : model.arrays) {
      complaints.unless(array == std::vector<float>(array.size(), -2), "values");
    }
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace ddprun
