// Groups of one process fail together, and the agent's word fails them: on the fakes, ranks are
// threads.

#include <catch2/catch.hpp>
#include <future>

#include "agent/health/progress_files.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/model.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Complaints;
using test::FakeGpu;
using test::Ranks;

std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Rank 1 calls nothing until rank 0 has seen the end of it.
class Alone {
 public:
  explicit Alone(std::function<void(ProcessGroup&, ProcessGroup& sibling, ProcessGroup& idle)> body)
      : body_(std::move(body)) {}

  std::string outcome() {
    auto done = done_.get_future().share();
    return test::outcome(Ranks{.backend = "nccl"}.run([&](ProcessGroup& group) {
      auto sibling = group.split(0);
      auto idle = sibling->split(0, -group.rank());  // Its ranks are the other way round.
      if (group.rank() == 1) return done.wait();
      body_(group, *sibling, *idle);
      done_.set_value();
    }));
  }

 private:
  const std::function<void(ProcessGroup&, ProcessGroup&, ProcessGroup&)> body_;
  std::promise<void> done_;
};

constexpr char kOther[] = "another group of this process failed: ";

TEST_CASE("NCCL: a deadline in one group ends its siblings, all at once", "[nccl]") {
  const FakeGpu gpu("abort_syncs=1");  // One after the other they would never be aborted.
  std::optional<Error> in_group, in_sibling, in_idle;
  CHECK(Alone([&](auto& group, auto& sibling, auto& idle) {
          float a = 0, b = 0;
          Work other = sibling.all_reduce_async(buffer(&a, 1));
          Work first = group.all_reduce_async(buffer(&b, 1), ReduceOp::sum, {.timeout = 300ms});
          in_group = error_of([&] { first.wait(); });
          in_sibling = error_of([&] { other.wait(); });
          in_idle = error_of([&] { idle.all_reduce(buffer(&a, 1)); });
        }).outcome() == "all well");
  for (const auto& error : {in_group, in_sibling, in_idle}) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::timed_out);
    CHECK(error->where().waited < 30s);
  }
  CHECK(in_group->where().peer == 1);
  CHECK(in_sibling->where().peer == 1);
  CHECK(in_idle->where().peer == 0);  // The same rank of the job.
  CHECK(in_sibling->text().find(kOther) == 0);
  CHECK(in_idle->text().find(kOther) == 0);
}

TEST_CASE("NCCL: abort() of a group frees who waits in its siblings", "[nccl]") {
  const FakeGpu gpu("abort_syncs=1");
  std::optional<Error> in_sibling;
  CHECK(Alone([&](auto& group, auto& sibling, auto&) {
          float a = 0, b = 0;
          Work other = sibling.all_reduce_async(buffer(&a, 1));
          Work mine = group.all_reduce_async(buffer(&b, 1));
          group.abort();
          in_sibling = error_of([&] { other.wait(); });
        }).outcome() == "all well");
  REQUIRE(in_sibling);
  INFO(in_sibling->what());
  CHECK(in_sibling->kind() == ErrorKind::aborted);
  CHECK(in_sibling->text().find("this rank called abort()") != std::string::npos);
}

TEST_CASE("NCCL: what the agent says of a lost rank is thrown, by every group", "[nccl]") {
  const FakeGpu gpu;
  auto page = agent::ProgressFile::make(0).value();
  FakeGpu::set("DDPRUN_PROGRESS", page.path());
  std::optional<Error> in_group, in_sibling, in_idle;
  const std::string outcome = Alone([&](auto& group, auto& sibling, auto& idle) {
                                float a = 0, b = 0;
                                Work other = sibling.all_reduce_async(buffer(&a, 1));
                                Work mine = group.all_reduce_async(buffer(&b, 1));
                                page.notify_loss(1, "rank 1 was killed by signal 9 (SIGKILL)");
                                in_group = error_of([&] { mine.wait(); });
                                in_sibling = error_of([&] { other.wait(); });
                                in_idle = error_of([&] { idle.all_reduce(buffer(&a, 1)); });
                              }).outcome();
  ::unsetenv("DDPRUN_PROGRESS");
  CHECK(outcome == "all well");
  for (const auto& error : {in_group, in_sibling, in_idle}) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::peer_lost);
    CHECK(error->where().waited < 30s);
    CHECK(error->text().find("the agent reports: rank 1 was killed by signal 9") !=
          std::string::npos);
  }
  CHECK(in_group->where().peer == 1);
  CHECK(in_idle->where().peer == 0);
}

TEST_CASE("NCCL: what the agent says of a lost rank ends a barrier, too", "[nccl]") {
  const FakeGpu gpu;
  auto page = agent::ProgressFile::make(0).value();
  FakeGpu::set("DDPRUN_PROGRESS", page.path());
  std::optional<Error> in_barrier;
  const std::string outcome = Alone([&](auto& group, auto&, auto&) {
                                page.notify_loss(1, "its node was lost");
                                in_barrier = error_of([&] { group.barrier(); });
                              }).outcome();
  ::unsetenv("DDPRUN_PROGRESS");
  CHECK(outcome == "all well");
  REQUIRE(in_barrier);
  CHECK(in_barrier->kind() == ErrorKind::peer_lost);
  CHECK(in_barrier->where().peer == 1);
  CHECK(in_barrier->text().find("the agent reports: its node was lost") != std::string::npos);
}

TEST_CASE("NCCL: a smaller group does not mind what the agent said of a rank left behind",
          "[nccl]") {
  const FakeGpu gpu;
  auto page = agent::ProgressFile::make(0).value();
  FakeGpu::set("DDPRUN_PROGRESS", page.path());
  Complaints complaints;
  const auto errors = Ranks{.world_size = 3, .backend = "nccl"}.run([&](ProcessGroup& group) {
    float value = 1;
    group.all_reduce(buffer(&value, 1));
    if (group.rank() == 0) page.notify_loss(2, "rank 2 was killed by signal 9 (SIGKILL)");
    if (group.rank() == 2) return;
    ProcessGroup next = group.shrink({.lost = {2}});
    for (int i = 0; i < 5; ++i) next.all_reduce(buffer(&value, 1));
    complaints.unless(value == 3 * 32, "the sum of the smaller group");
  });
  ::unsetenv("DDPRUN_PROGRESS");
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

TEST_CASE("NCCL: who is left joins a new group in the same process, and it works", "[nccl]") {
  const FakeGpu gpu("hang=2:2,abort_syncs=1");
  const test::TemporaryDirectory folder;
  const Ranks next{.backend = "nccl"};
  Complaints complaints;
  const auto errors =
      Ranks{.world_size = 3, .backend = "nccl", .op_timeout = 500ms}.run([&](ProcessGroup& group) {
        const auto error = error_of([&] {
          float value = 1;
          for (int i = 0; i < 2; ++i) group.all_reduce(buffer(&value, 1));
        });
        complaints.unless(error && error->kind() == ErrorKind::timed_out, "no end of the first");
        if (group.rank() == 2) return;
        auto again = ProcessGroup::init(next.options(folder / "store", group.rank()));
        auto memory = again.allocate(4);
        again.all_reduce({memory.get(), 1, DataType::f32});
        float value = static_cast<float>(again.rank() + 1);
        again.all_reduce(buffer(&value, 1));
        complaints.unless(value == 3, "the sum of the second");
      });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
}

}  // namespace
}  // namespace ddprun
