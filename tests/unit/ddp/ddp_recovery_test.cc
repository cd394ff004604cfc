// DistributedDataParallel where a pass does not come to its end, and where others look on: a pass
// that is cancelled, one that is forgotten, and readers in other threads. Ranks are threads.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using namespace test;

constexpr std::size_t kLayers = 4;

// Each layer in a bucket of its own, so that ranks may have released different numbers of them.
DdpOptions each_alone() {
  DdpOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

// Marks `marks` layers, last one first, then gives up.
void pass_that_fails(DistributedDataParallel& ddp, std::size_t marks) {
  ddp.begin_backward();
  for (std::size_t k = 0; k < marks; ++k) {
    add(ddp.gradient(kLayers - 1 - k), 1);
    ddp.mark_ready(kLayers - 1 - k);
  }
  ddp.cancel_backward();
}

void check_next_passes(DistributedDataParallel& ddp, Complaints& complaints) {
  for (int step = 0; step < 3; ++step) {
    ddp.zero_gradients();
    pass(ddp, kLayers, 2);
    for (std::size_t i = 0; i < kLayers; ++i) {
      complaints.unless(read(ddp.gradient(i)) == std::vector<float>(5, 2), "an average");
    }
  }
}

TEST_CASE("DDP recovery: a rank may cancel a pass wherever it is; the peers finish theirs") {
  for (const bool first_pass : {true, false}) {
    for (const bool static_graph : {true, false}) {
      for (std::size_t marks = 0; marks <= kLayers; ++marks) {
        Complaints complaints;
        const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
          Model model({5, 5, 5, 5}, 0);
          DdpOptions options = each_alone();
          options.static_graph = static_graph;
          DistributedDataParallel ddp(group, model.parameters(), options);
          if (!first_pass) pass(ddp, kLayers, 1);
          ddp.zero_gradients();
          if (group.rank() == 1) {
            pass_that_fails(ddp, marks);
          } else {
            pass(ddp, kLayers, 1);
          }
          std::int32_t well = group.rank() == 1 ? 0 : 1;
          group.all_reduce(buffer(&well, 1), ReduceOp::min);
          complaints.unless(well == 0, "what the ranks agree on");
          check_next_passes(ddp, complaints);
        });
        INFO("first " << first_pass << ", static " << static_graph << ", marks " << marks);
        CHECK(outcome(errors) == "all well");
        CHECK(complaints.text() == "none");
      }
    }
  }
}

TEST_CASE(
    "DDP recovery: a pass that lacks a gradient on one rank only does not hold up the peers") {
  for (const bool first_pass : {true, false}) {
    for (std::size_t marks = 0; marks < kLayers; ++marks) {
      Complaints complaints;
      const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
        Model model({5, 5, 5, 5}, 0);
        DistributedDataParallel ddp(group, model.parameters(), each_alone());
        if (!first_pass) pass(ddp, kLayers, 1);
        ddp.zero_gradients();
        bool misused = false;
        try {
          pass(ddp, group.rank() == 1 ? marks : kLayers, 1);
        } catch (const Error& error) {
          misused = error.kind() == ErrorKind::bad_argument;
        }
        complaints.unless(misused == (group.rank() == 1), "who learns of it");
        std::int32_t well = misused ? 0 : 1;
        group.all_reduce(buffer(&well, 1), ReduceOp::min);
        complaints.unless(well == 0, "what the ranks agree on");
        check_next_passes(ddp, complaints);
      });
      INFO("first " << first_pass << ", marks " << marks);
      CHECK(outcome(errors) == "all well");
      CHECK(complaints.text() == "none");
    }
  }
}

TEST_CASE("DDP recovery: ranks may cancel one pass at different points, and local ones") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model({5, 5, 5, 5}, 0);
    DistributedDataParallel ddp(group, model.parameters(), each_alone());
    ddp.cancel_backward();  // There is none.
    pass(ddp, kLayers, 1);
    pass_that_fails(ddp, static_cast<std::size_t>(group.rank()));
    {
      const auto guard = ddp.no_sync();
      pass_that_fails(ddp, static_cast<std::size_t>(group.rank()));
    }
    check_next_passes(ddp, complaints);
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP recovery: the number of a parameter that there is not is refused, and all goes on") {
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    Model model({5}, 0);
    DdpOptions options;
    options.find_unused = true;
    DistributedDataParallel ddp(group, model.parameters(), options);
    const std::vector<std::function<void()>> calls = {
        [&] { (void)ddp.gradient(1); }, [&] { (void)ddp.gradient_memory(1); },
        [&] { (void)ddp.used(1); }, [&] { ddp.set_value(1, {}); }, [&] { ddp.mark_ready(1); }};
    const auto refused = [](const std::function<void()>& call) {
      std::string text = "nothing";
      try {
        call();
      } catch (const Error& error) {
        text = error.text();
      }
      if (text != "there is no parameter 1, only 1") throw Error(ErrorKind::mismatch, {}, text);
    };
    for (const auto& call : calls) refused(call);
    {
      const auto local = ddp.no_sync();
      ddp.begin_backward();
      refused(calls.back());
      ddp.finish_backward();
    }
    pass(ddp, 1, 1);
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("DDP recovery: where the buckets cannot be rebuilt, gradients stay where they are") {
  Complaints complaints;
  std::optional<ErrorKind> kind;
  (void)Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({5, 5, 5, 5}, 0);
    DistributedDataParallel ddp(group, model.parameters());
    ddp.begin_backward();
    for (std::size_t i = 0; i < kLayers;
         ++i) {  // Not as expected, so that there is something to do.
      add(ddp.gradient(i), 3);
      ddp.mark_ready(i);
    }
    ddp.finish_backward();
    if (group.rank() == 1) {  // It agrees to the new order, and to no new buckets.
      std::vector<std::int64_t> order(kLayers);
      group.broadcast(buffer(order.data(), order.size()), 0, {.on_host = true});
      return group.barrier();
    }
    try {
      ddp.begin_backward();
    } catch (const Error& error) {
      kind = error.kind();
    }
    complaints.unless(ddp.buckets().size() == 1, "the buckets");
    complaints.unless(ddp.used(0), "who is used");
    complaints.unless(read(ddp.gradient(2)) == std::vector<float>(5, 3), "an average");
  });
  CHECK(kind == ErrorKind::mismatch);
  CHECK(complaints.text() == "none");
}

TEST_CASE("DDP recovery: a pass that nobody finished is spoken of at the end") {
  const auto end_in_pass = [](bool finished) {
    return stderr_of([&] {
      (void)Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
        Model model({5}, 0);
        DistributedDataParallel ddp(group, model.parameters());
        ddp.begin_backward();
        ddp.mark_ready(0);
        if (finished) ddp.finish_backward();
      });
    });
  };
  CHECK_THAT(end_in_pass(false), Contains("rank 0") && Contains("finish_backward()"));
  CHECK(end_in_pass(true).empty());
}

TEST_CASE("DDP recovery: other threads may look on while a pass is under way") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({5, 5, 5, 5}, 0);
    DdpOptions options = each_alone();
    options.find_unused = true;
    options.timer.window = 4;
    DistributedDataParallel ddp(group, model.parameters(), options);
    std::atomic<bool> done{false};
    std::atomic<int> polls{0};
    ddp.on_window([&](const SyncWindow&) { (void)ddp.total(); });  // Called inside a call.
    std::thread reader([&] {
      while (!done) {
        (void)ddp.synchronises();
        complaints.unless(ddp.last_step().bytes <= ddp.total().bytes, "bytes");
        (void)ddp.used(0);
        (void)ddp.last_window();
        (void)ddp.buckets();
        ++polls;
      }
    });
    for (int step = 0; step < 20; ++step) {
      pass(ddp, kLayers, 1);
      const auto local = ddp.no_sync();
      complaints.unless(!ddp.synchronises(), "it synchronises in no_sync");
    }
    complaints.unless(ddp.synchronises(), "it does not synchronise after no_sync");
    while (polls < 20) std::this_thread::yield();
    done = true;
    reader.join();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
