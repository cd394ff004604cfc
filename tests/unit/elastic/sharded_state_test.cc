// Sharded state over groups of threads: what a round leaves is found by the next one, of any size.

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <numeric>

#include "ddprun/elastic/job.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"
#include "worker_sdk/job/sharded_state.h"

namespace ddprun::elastic {
namespace {

using Catch::Contains;
using test::stderr_of;

constexpr std::size_t kCount = 1000;
constexpr int kShards = 7;

ShardedOptions options(std::size_t count = kCount) {
  return {.count = count,
          .type = DataType::i64,
          .shards = kShards,
          .fill = [](std::size_t first, Buffer part) {
            auto* const values = static_cast<std::int64_t*>(part.data);
            std::iota(values, values + part.count, static_cast<std::int64_t>(first));
          }};
}

// The processes of a job, which stay while rounds come and go.
struct Processes {
  explicit Processes(int n, std::size_t count = kCount) {
    for (int i = 0; i < n; ++i) add(count);
  }
  void add(std::size_t count = kCount) {
    states.push_back(std::make_unique<ShardedState>("state", options(count)));
  }
  std::vector<std::unique_ptr<ShardedState>> states;
};

ShardRound round_of(ProcessGroup& group, std::int64_t version, std::vector<int> nodes = {}) {
  nodes.resize(static_cast<std::size_t>(group.world_size()), 0);
  return {.nodes = std::move(nodes), .version = {version}};
}

void enter(ShardedState& state, ProcessGroup& group, const ShardRound& round) {
  state.stage(group, round);
  group.barrier();
  state.install();
}

// One step: each element becomes 3 * itself + 1.
void step(ShardedState& state, ProcessGroup& group, std::int64_t version) {
  state.begin_step();
  const Buffer next = state.next();
  auto* const values = static_cast<std::int64_t*>(next.data);
  for (std::size_t i = 0; i < next.count; ++i) values[i] = 3 * values[i] + 1;
  state.refresh(group, {version});
  group.barrier();
  state.advance({version});
}

std::vector<std::int64_t> expected(std::int64_t steps, std::size_t count = kCount) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  for (; steps > 0; --steps) {
    for (std::int64_t& value : values) value = 3 * value + 1;
  }
  return values;
}

void require(bool well, const char* text) {
  if (!well) throw Error(ErrorKind::mismatch, {}, text);
}

void require_whole(ShardedState& state, ProcessGroup& group, std::int64_t steps,
                   std::size_t count = kCount) {
  std::vector<std::int64_t> whole(count, -1);
  state.gather(group, state.now(), buffer(whole.data(), whole.size()));
  require(whole == expected(steps, count), "the state differs");
}

using Errors = std::vector<std::optional<Error>>;

// A round of the processes that `members` numbers.
Errors round(Processes& all, const std::vector<int>& members,
             const std::function<void(ShardedState&, ProcessGroup&)>& body,
             const std::string& backend = "shm", const std::vector<std::string>& hosts = {}) {
  return test::Ranks{
      .world_size = static_cast<int>(members.size()), .backend = backend, .hosts = hosts}
      .run([&](ProcessGroup& group) {
        const auto number =
            static_cast<std::size_t>(members[static_cast<std::size_t>(group.rank())]);
        body(*all.states[number], group);
      });
}

TEST_CASE("Sharded state: rounds of other ranks go on with it") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    Processes all(5);
    std::int64_t version = 0;
    // One goes at a time; then some come.
    const std::vector<std::vector<int>> rounds = {{0, 1, 2, 3}, {1, 2, 3}, {3, 2},
                                                  {3},          {3, 0, 4}, {4, 0, 3, 1, 2}};
    for (const std::vector<int>& members : rounds) {
      const auto errors = round(
          all, members,
          [&](ShardedState& state, ProcessGroup& group) {
            enter(state, group, round_of(group, version));
            require_whole(state, group, version);
            step(state, group, version + 1);
            step(state, group, version + 2);
            require_whole(state, group, version + 2);
          },
          members.size() == 1 ? "auto" : backend);
      CHECK(test::outcome(errors) == "all well");
      version += 2;
      for (int number = 0; number < 5; ++number) {  // A process that is not in it ends.
        if (std::find(members.begin(), members.end(), number) != members.end()) continue;
        all.states[static_cast<std::size_t>(number)] =
            std::make_unique<ShardedState>("state", options());
      }
    }
  }
}

TEST_CASE("Sharded state: of more than one piece, and of fewer elements than shards") {
  for (const std::size_t count : {std::size_t{1'500'000}, std::size_t{3}, std::size_t{0}}) {
    Processes all(3, count);
    for (const std::vector<int>& members : {std::vector<int>{0, 1, 2}, std::vector<int>{2, 1}}) {
      const auto errors = round(all, members, [&](ShardedState& state, ProcessGroup& group) {
        const bool first = group.world_size() == 3;
        enter(state, group, round_of(group, first ? 0 : 1));
        if (first) step(state, group, 1);
        require_whole(state, group, 1, count);
      });
      CHECK(test::outcome(errors) == "all well");
    }
  }
}

TEST_CASE("Sharded state: what a step has refreshed counts as soon as one rank has committed") {
  Processes all(3);
  // Rank 0 commits; rank 1 does not know whether all have refreshed; rank 2 dies.
  auto errors = round(all, {0, 1, 2}, [&](ShardedState& state, ProcessGroup& group) {
    enter(state, group, round_of(group, 0));
    state.begin_step();
    const Buffer next = state.next();
    auto* const values = static_cast<std::int64_t*>(next.data);
    for (std::size_t i = 0; i < next.count; ++i) values[i] = 3 * values[i] + 1;
    state.refresh(group, {1});
    group.barrier();
    if (group.rank() == 0) state.advance({1});
  });
  CHECK(test::outcome(errors) == "all well");
  // No rank has committed, or rank 0 has.
  for (const std::int64_t version : {0, 1}) {
    errors = round(all, {0, 1}, [&](ShardedState& state, ProcessGroup& group) {
      state.stage(group, round_of(group, version));
      if (version == 0) return;  // And the round is over before it has begun.
      group.barrier();
      state.install();
      require_whole(state, group, 1);
    });
    CHECK(test::outcome(errors) == "all well");
  }
}

// A step was refreshed in round 5 and given up; a later round has computed it again without this
// rank, which has other shards of that step.
TEST_CASE("Sharded state: what another round has given up is not taken for the step") {
  Processes all(1);
  const auto errors = round(
      all, {0},
      [&](ShardedState& state, ProcessGroup& group) {
        enter(state, group, round_of(group, 0));
        state.begin_step();
        (void)state.next();
        state.refresh(group, {.steps = 1, .round = 5});
        ShardRound again = round_of(group, 1);
        again.version.round = 5;
        state.stage(group, again);  // A rank has committed it.
        again.version.round = 6;
        CHECK_THROWS_WITH(state.stage(group, again), Contains("after 1 steps: no rank has 7"));
      },
      "auto");
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("Sharded state: a step that does not change it commits what there was") {
  Processes all(2);
  const auto errors = round(all, {0, 1}, [&](ShardedState& state, ProcessGroup& group) {
    enter(state, group, round_of(group, 0));
    state.begin_step();
    state.refresh(group, {1});
    state.advance({1});
    require_whole(state, group, 0);
  });
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("Sharded state: where owner and copy are lost all ranks say so, with names") {
  Processes all(4);
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  auto errors = round(
      all, {0, 1, 2, 3},
      [&](ShardedState& state, ProcessGroup& group) {
        enter(state, group, round_of(group, 0, {0, 0, 1, 1}));
        step(state, group, 1);
      },
      "cpu", hosts);
  CHECK(test::outcome(errors) == "all well");
  all.add();  // Of process 0: process 2 has kept the copy.
  errors = round(all, {4, 1, 3}, [&](ShardedState& state, ProcessGroup& group) {
    enter(state, group, round_of(group, 1));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::state_lost);
    CHECK_THAT(error->what(),
               Contains("\"state\" after 1 steps: shards 0 to 1, which rank 0 on a had, and rank 2 "
                        "on b a copy of; shards 4 to 5, which rank 2 on b had, and rank 0 on a a "
                        "copy of, are lost with these ranks; start from a checkpoint"));
  }
}

TEST_CASE("Sharded state: before a planned change no set of nodes has some of it alone") {
  Processes all(4);
  auto errors = round(all, {0, 1, 2, 3}, [&](ShardedState& state, ProcessGroup& group) {
    const ShardRound round = round_of(group, 0, {0, 1, 2, 3});
    enter(state, group, round);
    step(state, group, 1);
    ShardRound last = round;
    last.version = {1};
    state.spread(group, last);
  });
  CHECK(test::outcome(errors) == "all well");
  errors = round(
      all, {2},
      [&](ShardedState& state, ProcessGroup& group) {
        enter(state, group, round_of(group, 1));
        require_whole(state, group, 1);
      },
      "auto");
  CHECK(test::outcome(errors) == "all well");
}

// Of two, the first writes to what it has of the newest step.
void write_beside_next(Processes& all) {
  const auto errors = round(all, {0, 1}, [&](ShardedState& state, ProcessGroup& group) {
    enter(state, group, round_of(group, 0));
    step(state, group, 1);
    if (group.rank() == 0) static_cast<std::int64_t*>(state.now().data)[5] ^= 1;
  });
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("Sharded state: a shard that was written to beside next() is replaced by its copy") {
  Processes all(3);
  write_beside_next(all);
  Errors errors;
  const std::string text = stderr_of([&] {
    errors = round(all, {0, 1, 2}, [&](ShardedState& state, ProcessGroup& group) {
      enter(state, group, round_of(group, 1));
      require_whole(state, group, 1);
      step(state, group, 2);
    });
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK_THAT(text, Contains("warning: rank 0 on ") &&
                       Contains("shard 0 of \"state\" does not match its checksum: it was changed "
                                "other than through next(), or damaged; the copy of rank 1 on "));
  CHECK(text.find("shard 0") == text.rfind("shard 0"));
}

TEST_CASE(
    "Sharded state: who has written to now() does not commit, and another rank has the copy") {
  for (const int when : {0, 1, 2}) {  // Before next(), after it, in a step without it.
    INFO(when);
    Processes all(3);
    auto errors = round(all, {0, 1, 2}, [&](ShardedState& state, ProcessGroup& group) {
      enter(state, group, round_of(group, 0));
      step(state, group, 1);
      state.begin_step();
      if (when == 1) (void)state.next();
      if (group.rank() == 1) ++static_cast<std::int64_t*>(state.now().data)[0];
      if (when == 0) (void)state.next();
      state.refresh(group, {2});
    });
    REQUIRE(errors[1]);
    CHECK(errors[1]->kind() == ErrorKind::corrupt);
    CHECK_THAT(errors[1]->what(), Contains("it was changed other than through next()"));
    for (const auto& other : {errors[0], errors[2]}) {
      if (other) CHECK(other->kind() != ErrorKind::corrupt);
    }
    const std::string text = stderr_of([&] {
      errors = round(all, {0, 1, 2}, [&](ShardedState& state, ProcessGroup& group) {
        enter(state, group, round_of(group, 1));
        require_whole(state, group, 1);
      });
    });
    CHECK(test::outcome(errors) == "all well");
    CHECK_THAT(text, Contains("the copy of rank"));
  }
}

TEST_CASE("Sharded state: all ranks say so where no copy of a shard is sound") {
  Processes all(3);
  write_beside_next(all);
  const auto errors = round(all, {0, 2}, [&](ShardedState& state, ProcessGroup& group) {
    enter(state, group, round_of(group, 1));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::state_lost);
    CHECK_THAT(error->what(),
               Contains("\"state\" after 1 steps: shard 0 does not match the checksum "
                        "on any rank that has it"));
  }
}

TEST_CASE("Sharded state: in a job of fixed ranks there are no copies") {
  Job job;
  auto& state = job.keep_sharded("state", options());
  CHECK_THROWS_WITH(job.keep_sharded("state", options()), Contains("kept already"));
  CHECK_THROWS_WITH(job.keep_sharded("none", {.count = 1, .shards = 0}), Contains("shards"));
  job.run(2, [&](Step& step) {
    CHECK(state.first() == 0);
    CHECK(state.size() == kCount);
    CHECK_THROWS_WITH(state.now<float>(), Contains("elements of i64, not f32"));
    const auto next = state.next<std::int64_t>();
    for (std::int64_t& value : next) value = 3 * value + 1;
    std::vector<std::int64_t> whole(kCount);
    state.gather_next(step.group(), buffer(whole.data(), whole.size()));
    CHECK(whole == expected(step.number() + 1));
    CHECK_THROWS_WITH(state.gather(step.group(), buffer(whole.data(), 1)), Contains("1000 elem"));
    step.commit();
    CHECK(state.now<std::int64_t>()[1] == expected(step.number() + 1)[1]);
  });
  CHECK_THROWS_WITH(job.keep_sharded("late", options()), Contains("before run()"));
}

TEST_CASE("Sharded state: fewer shards than ranks are refused, by the state's name") {
  const auto errors = test::Ranks{.world_size = 3}.run([](ProcessGroup& group) {
    ShardedState state("momenta", {.count = 10, .shards = 2});
    state.stage(group, {.nodes = {0, 0, 0}, .version = {}, .origin = 0, .is_elastic = true});
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::bad_argument);
    CHECK_THAT(error->what(), Contains("Job::keep_sharded: \"momenta\" has 2 shards for 3 ranks"));
  }
}

TEST_CASE("Sharded state: a checkpoint's needs a function that fills it") {
  for (const bool fills : {true, false}) {
    Job job;
    auto given = options();
    if (!fills) given.fill = nullptr;
    auto& state = job.keep_sharded("state", given);
    job.resume(8);
    const auto run = [&] {
      job.run(9, [&](Step& step) {
        CHECK(state.now<std::int64_t>()[7] == 7);
        step.commit();
      });
    };
    if (fills) {
      run();
    } else {
      CHECK_THROWS_WITH(run(), Contains("no rank has 7 of its 7 shards, nor a function"));
      job.resume(0);  // All ranks do.
      job.run(1, [&](Step& step) { step.commit(); });
    }
  }
}

}  // namespace
}  // namespace ddprun::elastic
