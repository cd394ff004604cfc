// ProcessGroup::shrink on every backend: the ranks that are left go on. Ranks are threads.

#include <catch2/catch.hpp>
#include <future>
#include <mutex>

#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "worker_sdk/join/meeting.h"
#ifdef DDPRUN_FAKES  // A program of tests/gpu.cmake: the same tests on nccl alone.
#include "tests/support/fake_gpu.h"
#endif

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Complaints;
using test::Ranks;
using worker_sdk::AgreedSurvivors;
using worker_sdk::decode_agreed;
using worker_sdk::decode_ranks;
using worker_sdk::Survey;
using Ints = std::vector<int>;

#ifdef DDPRUN_FAKES
using Machine = test::FakeGpu;
std::vector<Ranks> worlds() {
  return {{.world_size = 3, .backend = "nccl", .hosts = {"a", "b", "a"}}, {.backend = "nccl"}};
}
#else
struct Machine {
  Machine() {}
};
std::vector<Ranks> worlds() {
  return {{.world_size = 3, .backend = "shm"},
          {.backend = "gloo"},
          {.world_size = 4, .backend = "cpu"}};
}
#endif

TEST_CASE("Survivors: who is neither heard of nor lost is awaited", "[shrink]") {
  Survey survey(1, 5, {4});
  CHECK(survey.awaited() == Ints{0, 2, 3});
  survey.add_report(0, {3});
  CHECK(survey.awaited() == Ints{2});
  CHECK(survey.members() == Ints{0, 1});
  survey.add_report(2, {});
  survey.add_report(3, {});  // It is there, and yet a rank wants to go on without it.
  CHECK(survey.awaited().empty());
  CHECK(survey.members() == Ints{0, 1, 2});
}

TEST_CASE("Survivors: only what encode makes is understood", "[shrink]") {
  const AgreedSurvivors settlement{1500ms, {0, 2, 3}};
  CHECK(worker_sdk::encode(settlement) == "1500 0 2 3 ");
  CHECK(decode_agreed("1500 0 2 3 ", 4).value() == settlement);
  CHECK(decode_ranks("", 4).value() == Ints{});
  for (const char* bad : {"", "1500", "-1 0 ", "1500 0 2 3", "1500 2 0 ", "1500 1 1 ", "1500 4 ",
                          "1500  1 ", "1500 x ", "99999999999999999999 0 "}) {
    INFO(bad);
    CHECK_FALSE(decode_agreed(bad, 4));
  }
}

constexpr char kWell[] = "all well, complaints: none";

// All but rank 1, which is called lost by `blames`, or by no rank.
std::string survive(const Ranks& world, const std::function<bool(int)>& blames,
                    std::chrono::milliseconds patience = 30s) {
  Complaints complaints;
  const int left = world.world_size - 1;
  const auto errors = world.run([&](ProcessGroup& group) {
    std::int32_t value = 1;
    group.all_reduce(buffer(&value, 1));
    if (group.rank() == 1) return;
    ShrinkOptions options;
    if (blames(group.rank())) options.lost = {1};
    options.patience = patience;
    ProcessGroup next = group.shrink(options);
    complaints.unless(!(next.world_size() != left), "the size");
    complaints.unless(!(next.rank() != (group.rank() == 0 ? 0 : group.rank() - 1)), "the rank");
    complaints.unless(!(next.host_of(next.rank()) != group.host_of(group.rank())), "the host");
    auto memory = next.allocate(4096);
    value = next.rank() + 1;
    next.copy(memory.get(), &value, sizeof(value));
    next.all_reduce({memory.get(), 1, DataType::i32});
    next.copy(&value, memory.get(), sizeof(value));
    complaints.unless(!(value != left * (left + 1) / 2), "the sum");
    try {
      group.barrier();
      complaints.unless(false, "the old group lives");
    } catch (const Error& error) {
      complaints.unless(!(error.kind() != ErrorKind::aborted), error.what());
    }
  });
  return test::outcome(errors) + ", complaints: " + complaints.text();
}

TEST_CASE("ProcessGroup: who is left of a group makes a smaller one", "[shrink]") {
  const Machine machine;
  for (const auto& world : worlds()) {
    INFO(world.backend);
    CHECK(survive(world, [](int) { return true; }) == kWell);
    CHECK(survive(world, [](int rank) { return rank == 0; }) == kWell);
  }
}

TEST_CASE("ProcessGroup: who does not come is left behind without being named", "[shrink]") {
  const Machine machine;
  CHECK(survive(
            worlds().front(), [](int) { return false; }, 2s) == kWell);
}

TEST_CASE("ProcessGroup: a rank that the others call lost, or that comes late, is refused",
          "[shrink]") {
  const Machine machine;
  std::promise<void> settled;
  auto is_settled = settled.get_future().share();
  const auto errors = worlds().front().run([&](ProcessGroup& group) {
    if (group.rank() == 2) is_settled.wait();
    ShrinkOptions options;
    if (group.rank() == 0) options.lost = {1, 2};
    auto next = group.shrink(options);
    if (group.rank() == 0) settled.set_value();
  });
  CHECK_FALSE(errors[0]);
  for (const std::size_t r : {1, 2}) {
    REQUIRE(errors[r]);
    INFO(errors[r]->what());
    CHECK(errors[r]->kind() == ErrorKind::aborted);
    CHECK(errors[r]->text().find("continue without this rank") != std::string::npos);
  }
}

TEST_CASE("ProcessGroup: a smaller group may become smaller still", "[shrink]") {
  const Machine machine;
  Complaints complaints;
  const auto errors = worlds().front().run([&](ProcessGroup& group) {
    if (group.rank() == 0) return;
    ProcessGroup two = group.shrink({.lost = {0}});
    if (two.rank() == 0) return;
    ProcessGroup one = two.shrink({.lost = {0}});
    std::int64_t value = 5;
    one.all_reduce(buffer(&value, 1), ReduceOp::sum, {.on_host = true});
    complaints.unless(!(value != 5 || one.world_size() != 1), "a world of one");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("ProcessGroup: what cannot be lost is refused before anything is said", "[shrink]") {
  const Machine machine;
  const auto errors = worlds().front().run([&](ProcessGroup& group) {
    if (group.rank() == 0) group.shrink({.lost = {0}});
    if (group.rank() == 1) group.shrink({.lost = {7}});
    if (group.rank() == 2) group.shrink({.patience = -1ms});
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::bad_argument);
  }
}

TEST_CASE("DistributedDataParallel goes on in a smaller group", "[shrink]") {
  const Machine machine;
  Complaints complaints;
  const auto errors = worlds().front().run([&](ProcessGroup& group) {
    test::Model model({4}, 1);
    DistributedDataParallel ddp(group, model.parameters());
    const auto step = [&](ProcessGroup& among, float want) {
      ddp.begin_backward();
      std::vector<float> mine(4, static_cast<float>(group.rank()));
      among.copy(ddp.gradient(0).data, mine.data(), 16);
      ddp.mark_ready(0);
      ddp.finish_backward();
      among.copy(mine.data(), ddp.gradient(0).data, 16);
      complaints.unless(!(mine[3] != want), "the average");
    };
    step(group, 1);
    if (group.rank() == 1) return;
    ProcessGroup next = group.shrink({.lost = {1}});
    ddp.reconfigure(next);
    step(next, 1);
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
