// DistributedDataParallel beyond the plain pass: rebuilding, unused parameters, static graphs,
// uneven inputs, checksums, other peers.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/model.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;

const DdpOptions kTiny{.first_bucket_bytes = 1, .bucket_bytes = 1};

// One pass with the parameters in this order; each gradient grows by `value`.
void pass_in_order(DistributedDataParallel& ddp, const std::vector<std::size_t>& order,
                   float value) {
  ddp.begin_backward();
  for (const std::size_t i : order) {
    add(ddp.gradient(i), value);
    ddp.mark_ready(i);
  }
  ddp.finish_backward();
}

float first(DistributedDataParallel& ddp, std::size_t i) { return read(ddp.gradient(i))[0]; }

}  // namespace

TEST_CASE(
    "DDP: buckets are rebuilt in rank 0's order of arrival, and gradients keep their values") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model({4, 5, 6, 7}, 0);
    DistributedDataParallel ddp(group, model.parameters(),
                                {.first_bucket_bytes = 1, .bucket_bytes = 40});
    complaints.unless(ddp.buckets() == std::vector<std::vector<std::size_t>>{{3}, {2, 1}, {0}},
                      "expected order");
    const std::vector<std::vector<std::size_t>> arrivals{{1, 3, 0, 2}, {3, 2, 1, 0}, {0, 1, 2, 3}};
    pass_in_order(ddp, arrivals[static_cast<std::size_t>(group.rank())], 1);
    {
      const auto guard = ddp.no_sync();
      pass(ddp, 4, static_cast<float>(group.rank()));
    }
    complaints.unless(ddp.rebuild(), "nothing moved");
    complaints.unless(!ddp.rebuild(), "moved twice");
    complaints.unless(ddp.buckets() == std::vector<std::vector<std::size_t>>{{1}, {3, 0}, {2}},
                      "rebuilt order");
    for (std::size_t i = 0; i < 4; ++i) {
      const auto gradient = read(ddp.gradient(i));
      complaints.unless(gradient == std::vector<float>(i + 4, 1 + static_cast<float>(group.rank())),
                        "a gradient was lost");
    }
    pass(ddp, 4, 0);
    complaints.unless(first(ddp, 2) == 2, "the mean of 1, 2 and 3");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: gradients stay where they are if they arrive as expected") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({4, 5}, 0);
    DistributedDataParallel ddp(group, model.parameters(), kTiny);
    const void* before = ddp.gradient(0).data;
    for (int step = 0; step < 3; ++step) pass(ddp, 2, 1);
    if (ddp.gradient(0).data != before) throw Error(ErrorKind::mismatch, {}, "it moved");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("DDP: with find_unused ranks may use different parameters") {
  Complaints complaints;
  const auto run = [&](bool named) {
    return Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
      Model model({3, 3, 3, 3}, 0);
      DdpOptions options = kTiny;
      options.find_unused = true;
      DistributedDataParallel ddp(group, model.parameters(), options);
      for (int step = 0; step < 3; ++step) {
        // Rank 0 uses 0 and 3, rank 1 uses 0 and 1, no rank uses 2.
        ddp.zero_gradients();
        const std::size_t mine = group.rank() == 0 ? 3 : 1;
        const std::vector<std::size_t> unused{2, std::size_t{4} - mine};
        ddp.begin_backward(named ? unused : std::vector<std::size_t>{});
        for (const std::size_t i : {mine, std::size_t{0}}) {
          add(ddp.gradient(i), 2);
          ddp.mark_ready(i);
        }
        ddp.finish_backward();
        complaints.unless(
            first(ddp, 0) == 2 && first(ddp, 1) == 1 && first(ddp, 3) == 1 && first(ddp, 2) == 0,
            "wrong mean");
        complaints.unless(ddp.used(0) && ddp.used(1) && ddp.used(3) && !ddp.used(2), "used");
      }
      complaints.unless(ddp.total().buckets == 12, "an extra collective");
    });
  };
  CHECK(outcome(run(true)) == "all well");
  CHECK(outcome(run(false)) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: a gradient of a local pass counts even if the synchronised pass does not use it") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({3, 3}, 0);
    DdpOptions options;
    options.find_unused = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    {
      const auto guard = ddp.no_sync();
      pass(ddp, 2, 4);
    }
    const std::vector<std::size_t> unused{1};
    ddp.begin_backward(unused);
    ddp.mark_ready(0);
    ddp.finish_backward();
    complaints.unless(first(ddp, 1) == 4 && ddp.used(1), "lost");
    ddp.zero_gradients();
    complaints.unless(ddp.used(1), "zeroed with the gradients");
    ddp.begin_backward(unused);
    ddp.mark_ready(0);
    complaints.unless(ddp.used(1), "known before the pass has ended");
    ddp.finish_backward();
    complaints.unless(!ddp.used(1), "still used");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: a static graph may mark a parameter several times, also with no_sync") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({3, 3, 3}, 0);
    DdpOptions options = kTiny;
    options.static_graph = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    const float mine = static_cast<float>(1 + group.rank());
    for (int step = 0; step < 4; ++step) {
      ddp.zero_gradients();
      const auto run = [&] { pass_in_order(ddp, {2, 0, 2}, mine); };
      if (step % 2 == 1) {
        const auto guard = ddp.no_sync();
        run();
      }
      run();
      const float times = step % 2 == 1 ? 2 : 1;
      complaints.unless(first(ddp, 2) == 2 * 1.5F * times && first(ddp, 0) == 1.5F * times,
                        "wrong mean in step " + std::to_string(step));
      complaints.unless(!ddp.used(1) && ddp.used(2), "used");
      complaints.unless(ddp.rebuild() == (step == 0), "when it was rebuilt");
      complaints.unless(!ddp.used(1) && ddp.used(2), "lost with the first buckets");
    }
    complaints.unless(ddp.total().steps == 4, "steps");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: ranks with fewer inputs join, and all end with the longest one's values") {
  Complaints complaints;
  const int steps[] = {2, 5, 0, 3};
  const auto errors = Ranks{.world_size = 4}.run([&](ProcessGroup& group) {
    Model model({3, 4}, 0);
    DdpOptions options = kTiny;
    options.uneven_inputs = true;
    options.timer.window = 2;
    DistributedDataParallel ddp(group, model.parameters(), options);
    for (int step = 0; step < steps[group.rank()]; ++step) {
      ddp.zero_gradients();
      pass(ddp, 2, 4);
      int live = 0;
      for (const int s : steps) live += s > step ? 1 : 0;
      complaints.unless(first(ddp, 0) == static_cast<float>(live), "wrong mean");
      for (float& x : model.arrays[1]) x -= first(ddp, 1);  // SGD.
    }
    ddp.join();
    complaints.unless(model.arrays[1] == std::vector<float>(4, -(3 + 3 + 2 + 1 + 1)),
                      "values " + std::to_string(model.arrays[1][0]));
    complaints.unless(first(ddp, 0) == 0, "gradients are left");
    ddp.zero_gradients();
    pass(ddp, 2, 1);  // The next epoch.
    complaints.unless(first(ddp, 1) == 1, "after join");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP: join works with unused parameters and a static graph too") {
  for (const bool is_static : {false, true}) {
    const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
      Model model({3, 4, 5}, 0);
      DdpOptions options = kTiny;
      options.uneven_inputs = true;
      options.find_unused = true;
      options.static_graph = is_static;
      DistributedDataParallel ddp(group, model.parameters(), options);
      for (int step = 0; step < 3 + 2 * group.rank(); ++step) {
        ddp.zero_gradients();
        pass_in_order(ddp, {2, 0}, 2);
        const float expected = step < 3 ? 2 : 1;
        if (first(ddp, 2) != expected) throw Error(ErrorKind::mismatch, {}, "wrong mean");
        if (ddp.used(1)) throw Error(ErrorKind::mismatch, {}, "used");
      }
      ddp.join();
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("DDP: models that drift apart are named by parameter and rank") {
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model({3, 401, 5}, 0);
    DdpOptions options;
    options.checksum_every = 2;
    DistributedDataParallel ddp(group, model.parameters(), options);
    for (int step = 0; step < 10; ++step) {
      pass(ddp, 3, 1);
      if (step == 4 && group.rank() == 1) model.arrays[1][400] = 1e-30F;
    }
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK(error->where().peer == 1);
    CHECK_THAT(error->what(),
               Contains("parameter layer1 of rank 1 (") && Contains("differs from that of rank 0"));
  }
}

TEST_CASE("DDP: every rank gets the same bits, whatever the hook") {
  for (const CommHookFactory& hook :
       {hooks::all_reduce(), hooks::fp16(), hooks::bf16(), hooks::power_sgd({.start_step = 1})}) {
    const auto errors = Ranks{.world_size = 4}.run([&](ProcessGroup& group) {
      std::vector<float> values(40 * 30 + 7);
      DdpOptions options = kTiny;
      options.hook = hook;
      DistributedDataParallel ddp(group,
                                  {{"matrix", buffer(values.data(), 1200), {40, 30}},
                                   {"vector", buffer(values.data() + 1200, 7), {7}}},
                                  options);
      std::mt19937 random(static_cast<unsigned>(group.rank()));
      for (int step = 0; step < 3; ++step) {
        ddp.begin_backward();
        for (const std::size_t i : {1, 0}) {
          auto* g = static_cast<float*>(ddp.gradient(i).data);
          for (std::size_t k = 0; k < ddp.gradient(i).count; ++k) {
            g[k] = std::normal_distribution<float>()(random);
          }
          ddp.mark_ready(i);
        }
        ddp.finish_backward();
        for (const std::size_t i : {0, 1}) {
          const auto mine = read(ddp.gradient(i));
          std::vector<float> all(4 * mine.size());
          group.all_gather(ddp.gradient(i), buffer(all.data(), all.size()));
          for (std::size_t k = 0; k < all.size(); ++k) {
            if (std::memcmp(&all[k], &mine[k % mine.size()], 4) == 0) continue;
            throw Error(ErrorKind::mismatch, {}, "bits differ");
          }
        }
      }
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("DDP: options that contradict each other are refused") {
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model({1}, 0);
    DistributedDataParallel(group, model.parameters(),
                            {.uneven_inputs = true, .checksum_every = 5});
  });
  CHECK_THAT(outcome(errors), Contains("exclude each other"));
  const auto join = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model({1}, 0);
    DistributedDataParallel(group, model.parameters()).join();
  });
  CHECK_THAT(outcome(join), Contains("join() needs"));
}

TEST_CASE("DDP: after reconfigure it trains on with other peers from rank 0's values") {
  Complaints complaints;
  const test::TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model({4, 5}, 1);
    DistributedDataParallel ddp(group, model.parameters(), kTiny);
    pass_in_order(ddp, {0, 1}, 1);
    ddp.begin_backward();  // Half a step, and the membership changes.
    ddp.mark_ready(0);
    model.arrays[0].assign(4, static_cast<float>(10 + group.rank()));
    group.abort();
    if (group.rank() == 0) return;  // Lost.
    const Ranks two{.world_size = 2};
    auto next = ProcessGroup::init(two.options(directory / "next", group.rank() - 1));
    ddp.reconfigure(next);
    complaints.unless(model.arrays[0][0] == 11, "values are not those of the new rank 0");
    complaints.unless(first(ddp, 0) == 0 && first(ddp, 1) == 0, "gradients are left");
    for (int step = 0; step < 3; ++step) {
      ddp.zero_gradients();
      pass(ddp, 2, static_cast<float>(2 * next.rank()));
      complaints.unless(first(ddp, 0) == 1 && first(ddp, 1) == 1, "wrong mean");
    }
    next.barrier();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace ddprun
