// Groups that are split off others, deadlines of single calls, and what Work reports.

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <latch>

#include "tests/support/worlds.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using test::FirstComplaint;
using test::Ranks;
using test::World;

World world(const std::string& backend, const std::vector<std::string>& hosts) {
  return {backend, hosts};
}

std::vector<World> splittable() {
  return {world("shm", {"a", "a", "a", "a", "a"}), world("gloo", {"a", "a", "a", "a", "a"}),
          world("cpu", {"a", "a", "a", "b", "b"}), world("auto", {"a", "a", "a", "b", "b"})};
}

int sum_of_ranks(ProcessGroup& group, int mine) {
  std::int32_t sum = mine;
  group.all_reduce(buffer(&sum, 1));
  return sum;
}

TEST_CASE("Split: colors make groups, keys their order, and groups do not hear of each other",
          "[split]") {
  for (const World& world : splittable()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      const int me = group.rank();
      // Even ranks in falling order, odd ones but 3 in rising order, 3 in none.
      auto part = group.split(me == 3 ? -1 : me % 2, -me * (me % 2 == 0 ? 1 : 0));
      if ((me == 3) != !part) complaints.add("who is in");
      if (part) {
        const int n = me % 2 == 0 ? 3 : 1;
        const int rank = me % 2 == 0 ? (4 - me) / 2 : 0;
        if (part->world_size() != n || part->rank() != rank) complaints.add("order");
        for (int i = 0; i < (me % 2 == 0 ? 5 : 3); ++i) {
          if (sum_of_ranks(*part, me) != (n == 3 ? 6 : 1)) complaints.add("sum");
        }
        part->store().set("by " + std::to_string(me), "x");
      }
      if (sum_of_ranks(group, me) != 10) complaints.add("the whole group");
      // Once more, and a part of a part.
      auto again = group.split(me < 4 ? 7 : 8);
      auto quarter = again->split(again->rank() / 2);
      if (quarter->world_size() != (me == 4 ? 1 : 2)) complaints.add("a part of a part");
      if (sum_of_ranks(*quarter, me) != (me == 4 ? 4 : me / 2 * 4 + 1)) complaints.add("its sum");
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("Split: each group has the backend that suits its hosts", "[split]") {
  FirstComplaint complaints;
  const auto errors = world("auto", {"a", "a", "b", "b"}).ranks().run([&](auto& group) {
    if (group.backend() != "cpu") complaints.add("whole: " + group.backend());
    auto inside = group.split(group.rank() / 2);
    auto across = group.split(group.rank() % 2);
    if (inside->backend() != "shm") complaints.add("inside: " + inside->backend());
    if (across->backend() != "gloo") complaints.add("across: " + across->backend());
    if (across->host_of(1) != "b") complaints.add("host");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "");
}

TEST_CASE("Split: a group outlives the one it comes from, and works beside it", "[split]") {
  for (const World& world : splittable()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      auto other = group.split(0);
      {
        ProcessGroup gone = std::move(group);
        // Both at once, each in its own thread.
        auto beside = std::async(std::launch::async, [&] {
          for (int i = 0; i < 50; ++i) {
            if (sum_of_ranks(*other, 1) != 5) complaints.add("beside");
          }
        });
        for (int i = 0; i < 50; ++i) {
          if (sum_of_ranks(gone, 2) != 10) complaints.add("first");
        }
        beside.get();
      }
      if (sum_of_ranks(*other, 3) != 15) complaints.add("after");
      other->barrier();
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("Split: errors name ranks by both groups", "[split]") {
  std::promise<void> others_are_done;
  auto done = others_are_done.get_future().share();
  const auto errors = world("shm", {"a", "a", "a"}).ranks().run([&](auto& group) {
    auto part = group.split(group.rank() == 0 ? -1 : 0);
    if (group.rank() == 0) return;
    if (group.rank() == 2) return done.wait();
    try {
      part->barrier({.timeout = 200ms});
    } catch (const Error&) {
      others_are_done.set_value();
      throw;
    }
  });
  REQUIRE(errors[1]);
  CHECK(errors[1]->text() == "no sign of rank 1 (2 of the job) on a");
  CHECK_THAT(errors[1]->what(), StartsWith("rank 0 (1 of the job) on a: barrier #1: "));
  CHECK(errors[1]->where().peer == 1);
  CHECK(errors[1]->where().job_rank == 1);
}

TEST_CASE("Split: several missing ranks are named by both groups", "[split]") {
  std::latch done(4);
  const auto errors = world("shm", {"a", "a", "a", "a"}).ranks().run([&](auto& group) {
    auto part = group.split(group.rank() == 0 ? -1 : 0);
    const struct Done {
      std::latch& latch;
      ~Done() { latch.arrive_and_wait(); }
    } before_anybody_leaves{done};
    if (group.rank() == 1) part->barrier({.timeout = 200ms});
    if (group.rank() == 2) part->broadcast(Buffer{nullptr, 1, DataType::f32}, 0);
  });
  REQUIRE(errors[1]);
  CHECK(errors[1]->text() == "no sign of ranks 1 (2 of the job; a), 2 (3 of the job; a)");
  CHECK(errors[1]->where().missing == std::vector<int>{1, 2});
  REQUIRE(errors[2]);
  CHECK_THAT(errors[2]->what(), StartsWith("rank 1 (2 of the job) on a: broadcast ("));
}

TEST_CASE("Split: a group of which a rank does not come is not made", "[split]") {
  std::vector<std::string> texts(3);
  const auto errors =
      Ranks{.world_size = 3, .backend = "shm", .op_timeout = 300ms}.run([&](auto& group) {
        if (group.rank() == 1) return;
        group.split(0);
      });
  REQUIRE(errors[0]);
  REQUIRE(errors[2]);
  CHECK(errors[0]->where().peer == 1);
  CHECK(errors[2]->where().peer == 1);
}

TEST_CASE("Split: the error of a message with a tag names its ranks as the group does", "[split]") {
  const auto errors = Ranks{.world_size = 3}.run([](ProcessGroup& group) {
    float value = 0;
    if (group.rank() == 2) group.recv(buffer(&value, 1), 1, {.timeout = 50ms, .tag = 7});
  });
  REQUIRE(errors[2]);
  CHECK(errors[2]->kind() == ErrorKind::timed_out);
  CHECK(errors[2]->where().peer == 1);
  CHECK(errors[2]->where().missing == std::vector<int>{1});
  CHECK_THAT(errors[2]->text(), Contains("rank 1 ") && EndsWith("no sign of rank(s) 1"));
  CHECK_THAT(errors[2]->where().operation, EndsWith("(f32 x 1, from 1, tag 7)"));
}

TEST_CASE("Split: after a message whose rank did not come in time its tag is over", "[split]") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    float value = 0;
    if (group.rank() == 0) return group.barrier();
    try {
      group.recv(buffer(&value, 1), 0, {.timeout = 50ms, .tag = 7});
    } catch (const Error&) {
      group.barrier();
    }
    group.recv(buffer(&value, 1), 0, {.timeout = 50ms, .tag = 7});
  });
  REQUIRE(errors[1]);
  CHECK(errors[1]->kind() == ErrorKind::aborted);
  CHECK_THAT(errors[1]->text(),
             StartsWith("no message of this tag can follow") && Contains("no sign of rank(s) 0"));
}

TEST_CASE("Work: a call's own deadline counts, not the group's", "[work]") {
  for (const char* backend : {"shm", "gloo"}) {
    std::promise<void> failed;
    auto has_failed = failed.get_future().share();
    const auto errors = Ranks{.world_size = 2, .backend = backend}.run([&](auto& group) {
      float value = 0;
      if (group.rank() == 1) return has_failed.wait();
      Work work = group.all_reduce_async(buffer(&value, 1), ReduceOp::sum, {.timeout = 200ms});
      const bool soon = work.wait_for(1ms);
      const bool at_last = [&] {
        try {
          return work.wait_for(50s);
        } catch (const Error&) {
          failed.set_value();
          throw;
        }
      }();
      if (soon || at_last) failed.set_value();
    });
    INFO(backend);
    REQUIRE(errors[0]);
    CHECK(errors[0]->kind() == ErrorKind::timed_out);
    CHECK(errors[0]->where().waited < 30s);
    CHECK_FALSE(errors[1]);
  }
}

TEST_CASE("Work: tells whether it is done, and its error without throwing", "[work]") {
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  FirstComplaint complaints;
  const auto errors = Ranks{.world_size = 2, .backend = "shm"}.run([&](auto& group) {
    float value = 1;
    Work good = group.all_reduce_async(buffer(&value, 1));
    good.wait();
    if (good.error() || !good.wait_for(0ms)) complaints.add("good");
    if (group.rank() == 1) return has_failed.wait();
    Work bad = group.broadcast_async(buffer(&value, 1), 1, {.timeout = 100ms});
    while (!bad.done()) std::this_thread::yield();
    const auto error = bad.error();
    if (!error || error->kind() != ErrorKind::timed_out) complaints.add("bad");
    failed.set_value();
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "");
}

TEST_CASE("Work: a negative deadline is refused and leaves the group alive", "[work]") {
  ProcessGroup group = ProcessGroup::init();
  float value = 3;
  CHECK_THROWS_AS(group.all_reduce(buffer(&value, 1), ReduceOp::sum, {.timeout = -1ms}), Error);
  group.all_reduce(buffer(&value, 1));
  CHECK(group.split(0)->world_size() == 1);
  CHECK_FALSE(group.split(-1));
  group.store().set("key", "value");
  CHECK(group.split(3)->store().get("key", 1s) == "value");
}

}  // namespace
}  // namespace ddprun
