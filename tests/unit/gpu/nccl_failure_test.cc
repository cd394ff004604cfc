// Every way a group of nccl fails, by a fault of the fake: what is thrown, on which rank, and which
// rank it names. Ranks are threads.

#include <catch2/catch.hpp>
#include <future>

#include "tests/support/fake_gpu.h"
#include "tests/support/no_threads.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::FakeGpu;
using test::Ranks;
using Errors = std::vector<std::optional<Error>>;

constexpr auto kFarDeadline = 50s;

Ranks nccl(int world_size = 3, std::chrono::milliseconds op_timeout = kFarDeadline) {
  return {.world_size = world_size, .backend = "nccl", .op_timeout = op_timeout};
}

void reduce(ProcessGroup& group, std::size_t count = 1000) {
  std::vector<float> values(count, 1);
  group.all_reduce(buffer(values.data(), count));
}

TEST_CASE("NCCL: calls that stay in progress for a while are waited for", "[nccl]") {
  const FakeGpu gpu("in_progress=3");
  const auto errors = nccl().run([](auto& group) {
    for (int i = 0; i < 5; ++i) reduce(group);
    auto memory = group.allocate(1000);
    group.barrier();
  });
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("NCCL: a bootstrap that a stranger hangs is begun anew with another id", "[nccl]") {
  const FakeGpu gpu("deaf_ids=1");
  Ranks ranks = nccl();
  ranks.init_timeout = 6s;  // The first attempt takes half of it.
  CHECK(test::outcome(ranks.run([](auto& group) { reduce(group); })) == "all well");
}

TEST_CASE("NCCL: large jobs are joined through several roots", "[nccl]") {
  const FakeGpu gpu;
  FakeGpu::set("DDPRUN_NCCL_RANKS_PER_ROOT", "2");
  CHECK(test::outcome(nccl(5).run([](auto& group) { reduce(group); })) == "all well");
  ::unsetenv("DDPRUN_NCCL_RANKS_PER_ROOT");
}

// Of 2 * 11 floats, in place: the source is copied apart first; and of the root's own part.
TEST_CASE("NCCL: a copy that CUDA refuses is the operation's error", "[nccl]") {
  for (const bool in_place : {true, false}) {
    const FakeGpu gpu("", in_place ? "refuse_copy=88" : "refuse_copy=44");
    const auto errors = nccl(in_place ? 2 : 1).run([&](auto& group) {
      auto memory = group.allocate(88), more = group.allocate(44);
      const Buffer all{memory.get(), in_place ? std::size_t{22} : std::size_t{11}, DataType::f32};
      if (in_place) return group.all_to_all(all, all);
      group.gather({more.get(), 11, DataType::f32}, all, 0);
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      INFO(error->what());
      CHECK(error->kind() == ErrorKind::system);
      CHECK(std::string(error->what()).find("cudaMemcpyAsync") != std::string::npos);
    }
  }
}

void check_named_at_init(const char* fault, int culprit, ErrorKind kind, const char* text,
                         const char* cuda = "") {
  INFO(fault);
  const FakeGpu gpu(fault, cuda);
  Ranks ranks = nccl();
  ranks.init_timeout = 4s;
  for (const auto& error : ranks.run([](auto&) {})) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == kind);
    CHECK(error->where().peer == culprit);
    CHECK(error->text().find(text) != std::string::npos);
  }
}

TEST_CASE("NCCL: who cannot join is named on every rank", "[nccl]") {
  check_named_at_init("init_error=1", 1, ErrorKind::unreachable, "NCCL says: unhandled system");
  check_named_at_init("init_hang=2", -1, ErrorKind::unreachable, "bootstrap does not end");
  check_named_at_init("", 0, ErrorKind::unsupported, "no NVIDIA driver",
                      "devices=0,status=35,driver=0");
  check_named_at_init("", 2, ErrorKind::unsupported, "it requests GPU 2, but sees 2", "devices=2");
  check_named_at_init("", 1, ErrorKind::mismatch, "use the same GPU", "devices=1");
}

TEST_CASE("NCCL: without a thread a group is refused, and one that fails still ends", "[nccl]") {
  const FakeGpu gpu;
  const Errors errors = nccl(1).run([](ProcessGroup& group) {
    std::string message;
    {
      const test::NoThreads none;
      try {
        (void)group.split(0);
      } catch (const Error& error) {
        message = error.what();
      }
      group.abort();  // The watch has no thread for NCCL's part either, nor a sibling to warn.
      const auto over = [&] {
        try {
          reduce(group);
          return false;
        } catch (const Error& error) {
          return error.kind() == ErrorKind::aborted;
        }
      };
      if (!over()) message += "; it lives";
    }
    throw Error(ErrorKind::corrupt, {}, message);
  });
  REQUIRE(errors[0]);
  INFO(errors[0]->what());
  CHECK(errors[0]->text().find("starting the thread ddprun-nccl") != std::string::npos);
  CHECK(errors[0]->text().find("it lives") == std::string::npos);
}

TEST_CASE("NCCL: an error that NCCL reports ends the operation on all ranks", "[nccl]") {
  const FakeGpu gpu("async_error=1:2");
  const Errors errors = nccl().run([](auto& group) {
    reduce(group);
    reduce(group);
  });
  for (int r = 0; r < 3; ++r) {
    const auto& error = errors[static_cast<std::size_t>(r)];
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::peer_lost);
    CHECK(error->where().operation.find("all_reduce #2") != std::string::npos);
    CHECK(error->where().waited < 20s);
    if (r == 1) CHECK(error->text().find("NCCL: remote process exited") != std::string::npos);
  }
}

TEST_CASE("NCCL: a call that NCCL refuses is told in its words", "[nccl]") {
  const FakeGpu gpu("refuse=0:1");
  const Errors errors = nccl(2).run([](auto& group) { reduce(group); });
  REQUIRE(errors[0]);
  INFO(errors[0]->what());
  CHECK(errors[0]->text().find("NCCL: unhandled system error: a fault of the fake") !=
        std::string::npos);
  REQUIRE(errors[1]);
  CHECK(errors[1]->where().peer == 0);
}

TEST_CASE("NCCL: an operation that does not end is ended by its deadline", "[nccl]") {
  const FakeGpu gpu("hang=2:1");
  for (const auto& error : nccl(3, 500ms).run([](auto& group) { reduce(group); })) {
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::timed_out);
  }
}

TEST_CASE("NCCL: ranks that disagree learn it at the deadline, with the odd one's name", "[nccl]") {
  const FakeGpu gpu;
  const Errors errors =
      nccl(3, 500ms).run([](auto& group) { reduce(group, group.rank() == 1 ? 1001 : 1000); });
  for (int r = 0; r < 3; ++r) {
    const auto& error = errors[static_cast<std::size_t>(r)];
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::mismatch);
    if (r != 1) CHECK(error->where().peer == 1);
  }
}

TEST_CASE("NCCL: a rank that does not come is named", "[nccl]") {
  const FakeGpu gpu;
  std::promise<void> others_are_done;
  auto done = others_are_done.get_future().share();
  std::atomic<int> failed{0};
  const Errors errors = nccl(3, 500ms).run([&](auto& group) {
    if (group.rank() == 2) return done.wait();
    try {
      reduce(group);
    } catch (const Error&) {
      if (++failed == 2) others_are_done.set_value();
      throw;
    }
  });
  for (const std::size_t r : {0, 1}) {
    REQUIRE(errors[r]);
    INFO(errors[r]->what());
    CHECK(errors[r]->kind() == ErrorKind::timed_out);
    CHECK(errors[r]->where().peer == 2);
  }
}

// NCCL connects the ranks in their first operation: its call is not over before all have come.
TEST_CASE("NCCL: a rank that leaves while the others connect is named soon", "[nccl]") {
  const FakeGpu gpu("connect=1");
  const Errors errors = nccl().run([&](auto& group) {
    if (group.rank() != 2) reduce(group);
  });
  CHECK_FALSE(errors[2]);
  for (const std::size_t r : {0, 1}) {
    REQUIRE(errors[r]);
    INFO(errors[r]->what());
    CHECK(errors[r]->kind() == ErrorKind::peer_lost);
    CHECK(errors[r]->where().peer == 2);
    CHECK(errors[r]->where().waited < kFarDeadline / 2);
  }
}

TEST_CASE("NCCL: ranks that cannot connect learn it at the deadline, not later", "[nccl]") {
  const FakeGpu gpu("connect=1");
  constexpr auto kTimeout = 4s;
  std::promise<void> thrown;
  auto after = thrown.get_future().share();
  const Errors errors = nccl(2, kTimeout).run([&](auto& group) {
    if (group.rank() == 1) return after.wait();
    try {
      reduce(group);
    } catch (const Error&) {
      thrown.set_value();
      throw;
    }
  });
  REQUIRE(errors[0]);
  INFO(errors[0]->what());
  CHECK(errors[0]->kind() == ErrorKind::timed_out);
  CHECK(errors[0]->where().waited < 2 * kTimeout + 2s);  // 3 s of them for the peer's own word.
}

TEST_CASE("NCCL: who has ended its part does not wait for a neighbour for ever", "[nccl]") {
  const FakeGpu gpu("destroy_hang=0");
  const auto start = std::chrono::steady_clock::now();
  CHECK(test::outcome(nccl(2).run([](auto& group) { reduce(group); })) == "all well");
  CHECK(std::chrono::steady_clock::now() - start < kFarDeadline / 2);
}

TEST_CASE("NCCL: abort() frees a waiting rank and tells the others", "[nccl]") {
  const FakeGpu gpu;
  std::promise<void> aborted;
  auto after_abort = aborted.get_future().share();
  const Errors errors = nccl().run([&](auto& group) {
    float value = 0;
    group.all_reduce(buffer(&value, 1));
    if (group.rank() == 2) after_abort.wait();  // Without it no rank can finish.
    Work work = group.all_reduce_async(buffer(&value, 1));
    if (group.rank() == 0) {
      group.abort();
      aborted.set_value();
    }
    work.wait();
    group.barrier();
  });
  REQUIRE(errors[0]);
  CHECK(errors[0]->kind() == ErrorKind::aborted);
  for (const std::size_t r : {1, 2}) {
    REQUIRE(errors[r]);
    INFO(errors[r]->what());
    CHECK(errors[r]->kind() == ErrorKind::peer_lost);
    CHECK(errors[r]->where().peer == 0);
  }
}

TEST_CASE("NCCL: after an error the group is dead, and says since when", "[nccl]") {
  const FakeGpu gpu("hang=0:1");
  std::atomic<int> right{0};
  const Errors errors = nccl(2, 300ms).run([&](auto& group) {
    for (int i = 0; i < 3; ++i) {
      try {
        i == 1 ? group.barrier() : reduce(group);
      } catch (const Error& error) {
        const bool names_cause = error.text().find("all_reduce #1") != std::string::npos;
        if (i > 0 && error.kind() == ErrorKind::aborted && names_cause) ++right;
      }
    }
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(right.load() == 4);
}

}  // namespace
}  // namespace ddprun
