// What was moved from may be destroyed or assigned to; any other call is refused by name. For
// ProcessGroup see process/worker_sdk/group_life_test.cc, for the libtorch adapter
// torch_changes_test.cc.

#include <catch2/catch.hpp>
#include <type_traits>

#include "tests/support/model.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using namespace test;

using Calls = std::vector<std::function<void()>>;

// Each must throw Error(bad_argument) that begins with the name of the class.
void require_refused(const Calls& calls, const std::string& name, Complaints& complaints) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    std::string text = "it went through";
    try {
      calls[i]();
    } catch (const Error& error) {
      const bool named = error.text().starts_with("this " + name);
      text = named && error.kind() == ErrorKind::bad_argument ? "" : error.what();
    }
    complaints.unless(text.empty(), name + ", call " + std::to_string(i) + ": " + text);
  }
}

// Also of one that never stood for an operation.
Calls calls_of(Work& work) {
  return {[&] { work.wait(); },         [&] { work.synchronize(); },
          [&] { (void)work.done(); },   [&] { (void)work.wait_for(1ms); },
          [&] { (void)work.error(); },  [&] { (void)work.duration(); },
          [&] { (void)work.started(); }};
}

Calls calls_of(DistributedDataParallel& ddp, ProcessGroup& group) {
  return {[&] { (void)ddp.gradient(0); },     [&] { (void)ddp.gradient_memory(0); },
          [&] { ddp.zero_gradients(); },      [&] { ddp.begin_forward(); },
          [&] { ddp.end_forward(); },         [&] { ddp.begin_backward(); },
          [&] { ddp.mark_ready(0); },         [&] { ddp.finish_backward(); },
          [&] { ddp.cancel_backward(); },     [&] { (void)ddp.used(0); },
          [&] { (void)ddp.rebuild(); },       [&] { (void)ddp.no_sync(); },
          [&] { (void)ddp.synchronises(); },  [&] { ddp.join(); },
          [&] { ddp.on_bucket_reduced({}); }, [&] { ddp.reconfigure(group); },
          [&] { ddp.set_value(0, {}); },      [&] { (void)ddp.last_step(); },
          [&] { (void)ddp.total(); },         [&] { (void)ddp.last_window(); },
          [&] { ddp.on_window({}); },         [&] { (void)ddp.trace(); },
          [&] { (void)ddp.buckets(); }};
}

TEST_CASE("Moved from: a Work is refused by name, and may be assigned to") {
  Complaints complaints;
  const auto errors = Ranks{}.run([&](ProcessGroup& group) {
    float value = 1, other = 1;
    Work work = group.all_reduce_async(buffer(&value, 1));
    Work taken = std::move(work);
    require_refused(calls_of(work), "Work", complaints);
    Work never;
    require_refused(calls_of(never), "Work", complaints);
    taken.wait();
    complaints.unless(value == 2, "the operation that was moved");
    work = group.all_reduce_async(buffer(&other, 1));
    work.wait();
    complaints.unless(other == 2, "the operation that was assigned");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("Moved from: a DistributedDataParallel is refused by name, and may be assigned to") {
  Complaints complaints;
  const auto errors = Ranks{}.run([&](ProcessGroup& group) {
    Model model({5, 5}, 0);
    DistributedDataParallel ddp(group, model.parameters());
    DistributedDataParallel taken = std::move(ddp);
    require_refused(calls_of(ddp, group), "DistributedDataParallel", complaints);
    pass(taken, 2, 1);
    complaints.unless(read(taken.gradient(0)) == std::vector<float>(5, 1), "where it was moved to");
    ddp = std::move(taken);
    require_refused(calls_of(taken, group), "DistributedDataParallel", complaints);
    ddp.zero_gradients();
    pass(ddp, 2, 3);
    complaints.unless(read(ddp.gradient(1)) == std::vector<float>(5, 3), "where it was assigned");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("Moved from: no_sync() goes with the DistributedDataParallel") {
  Complaints complaints;
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    Model model({5}, 0);
    DistributedDataParallel ddp(group, model.parameters());
    std::optional<DistributedDataParallel> taken;
    {
      const auto local = ddp.no_sync();
      taken.emplace(std::move(ddp));
      complaints.unless(!taken->synchronises(), "it was not moved along");
    }
    complaints.unless(taken->synchronises(), "its end was not noticed");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("Moved from: all other classes are plain values, or cannot be moved") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<DistributedSampler>);
  STATIC_REQUIRE(std::is_trivially_copyable_v<GradScaler>);
  STATIC_REQUIRE(std::is_copy_constructible_v<Metrics>);
  STATIC_REQUIRE_FALSE(std::is_move_constructible_v<CheckpointWriter>);
  STATIC_REQUIRE_FALSE(std::is_move_constructible_v<Checkpoint>);
  STATIC_REQUIRE_FALSE(std::is_move_constructible_v<DistributedDataParallel::NoSync>);
}

}  // namespace
}  // namespace ddprun
