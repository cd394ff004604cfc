// Ranks as processes that are killed, stopped or leave in the middle of a collective: the survivors
// must learn in time which rank it was, and nothing may be left behind.

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/forked_ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::ForkedRanks;
using test::Ranks;
using test::Report;
using test::shared_memory_files;

// Long enough that an error that comes before it was not caused by it, whatever the machine is
// doing.
constexpr auto kFarDeadline = 50s;

void reduce_for_ever(ProcessGroup& group, const std::function<void()>& ready) {
  auto memory = group.allocate(4 << 20);
  const Buffer direct{memory.get(), 1 << 20, DataType::f32};
  std::vector<float> own(300000);
  for (int i = 0;; ++i) {
    group.all_reduce(direct);
    group.all_reduce(buffer(own.data(), own.size()));
    if (i == 3) ready();
  }
}

TEST_CASE("Worker death: survivors of a SIGKILL in mid-collective are told who died", "[death]") {
  test::own_shared_memory();
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    for (const int victim : {0, 2, 3}) {
      INFO(backend << ", victim " << victim);
      const auto files = shared_memory_files();
      {
        ForkedRanks ranks({.world_size = 4, .backend = backend, .op_timeout = kFarDeadline},
                          reduce_for_ever);
        for (int r = 0; r < 4; ++r) REQUIRE(ranks.wait_ready(r));
        ranks.signal(victim, SIGKILL);
        for (int r = 0; r < 4; ++r) {
          if (r == victim) continue;
          const Report report = ranks.report(r);
          INFO(report.text);
          CHECK(report.threw);
          CHECK(report.kind == ErrorKind::peer_lost);
          CHECK(report.peer == victim);
          CHECK(report.waited < kFarDeadline / 2);
        }
      }
      CHECK(shared_memory_files() == files);
    }
  }
}

TEST_CASE("Worker death: a stopped rank is named at the deadline", "[death]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    // Far more than an all_reduce takes on a busy machine: only a stopped rank may be late.
    ForkedRanks ranks({.world_size = 4, .backend = backend, .op_timeout = 5s}, reduce_for_ever);
    for (int r = 0; r < 4; ++r) REQUIRE(ranks.wait_ready(r));
    ranks.signal(1, SIGSTOP);
    std::chrono::milliseconds longest{0};
    for (const int r : {0, 2, 3}) {
      const Report report = ranks.report(r);
      INFO(report.text);
      longest = std::max(longest, report.waited);
      CHECK(report.threw);
      CHECK(report.kind == ErrorKind::timed_out);
      CHECK(report.peer == 1);
      // The second one may be notified by the first, a little before its own deadline.
      CHECK(report.waited > 500ms);
    }
    CHECK(longest >= 5s);  // No rank gave up before its deadline.
  }
}

TEST_CASE("Worker death: a rank that leaves early is lost to the others", "[death]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    ForkedRanks ranks({.world_size = 3, .backend = backend, .op_timeout = kFarDeadline},
                      [](ProcessGroup& group, const auto&) {
                        float value = 1;
                        group.all_reduce(buffer(&value, 1));
                        if (group.rank() == 1) return;
                        group.all_reduce(buffer(&value, 1));
                      });
    for (const int r : {0, 2}) {
      const Report report = ranks.report(r);
      INFO(report.text);
      CHECK(report.threw);
      CHECK(report.kind == ErrorKind::peer_lost);
      CHECK(report.peer == 1);
    }
    CHECK_FALSE(ranks.report(1).threw);
  }
}

TEST_CASE("Worker death: a rank may leave as soon as its last operation is done", "[death]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      ForkedRanks ranks({.world_size = 4, .backend = backend, .op_timeout = kFarDeadline},
                        [](ProcessGroup& group, const auto&) {
                          std::vector<float> values(200000, 1.0f);
                          group.all_reduce(buffer(values.data(), values.size()));
                          group.broadcast(buffer(values.data(), values.size()), 0);
                        });
      for (int r = 0; r < 4; ++r) {
        const Report report = ranks.report(r);
        INFO(backend << " rank " << r << ": " << report.text);
        CHECK(report.came);
        CHECK_FALSE(report.threw);
      }
    }
  }
}

TEST_CASE("Worker death: a receiver is told that its sender died", "[death]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    ForkedRanks ranks({.world_size = 2, .backend = backend, .op_timeout = kFarDeadline},
                      [](ProcessGroup& group, const auto& ready) {
                        std::vector<float> values(1000);
                        ready();
                        if (group.rank() == 0) group.recv(buffer(values.data(), 1000), 1);
                        ::pause();
                      });
    REQUIRE(ranks.wait_ready(0));
    REQUIRE(ranks.wait_ready(1));
    ranks.signal(1, SIGKILL);
    const Report report = ranks.report(0);
    INFO(report.text);
    CHECK(report.threw);
    CHECK(report.kind == ErrorKind::peer_lost);
    CHECK(report.peer == 1);
  }
}

// The receiver stops itself once it has reported that it waits for the message, so that the sender
// fills what is between them and waits for the rest.
TEST_CASE("Worker death: the end of a receiver in the middle of a message frees the sender",
          "[death]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    ForkedRanks ranks({.world_size = 2, .backend = backend, .op_timeout = kFarDeadline},
                      [](ProcessGroup& group, const auto& ready) {
                        std::vector<float> values(16 << 20);
                        const Buffer message = buffer(values.data(), values.size());
                        if (group.rank() == 1) {
                          ::signal(SIGALRM, [](int) { ::raise(SIGSTOP); });
                          ::ualarm(200'000, 0);
                          group.recv(message, 0);
                        }
                        ::raise(SIGSTOP);
                        static const std::function<void()>* on_alarm = &ready;
                        ::signal(SIGALRM, [](int) { (*on_alarm)(); });
                        ::ualarm(200'000, 0);  // When what fits between them is on its way.
                        group.send(message, 1);
                      });
    REQUIRE(ranks.wait_stopped(0));
    REQUIRE(ranks.wait_stopped(1));
    ranks.signal(0, SIGCONT);
    REQUIRE(ranks.wait_ready(0));
    ranks.signal(1, SIGKILL);
    const Report report = ranks.report(0);
    INFO(report.text);
    CHECK(report.kind == ErrorKind::peer_lost);
    CHECK(report.peer == 1);
    CHECK(report.waited < kFarDeadline / 2);
  }
}

TEST_CASE("Worker death: killing all ranks at any moment leaves no shared memory behind",
          "[death]") {
  test::own_shared_memory();
  const auto files = shared_memory_files();
  for (int attempt = 0; attempt < 20; ++attempt) {
    ForkedRanks ranks({.world_size = 3, .backend = "shm", .op_timeout = kFarDeadline},
                      reduce_for_ever);
    // Some die while they join, some while they reduce.
    if (attempt % 4 == 0) REQUIRE(ranks.wait_ready(attempt % 3));
  }
  CHECK(shared_memory_files() == files);
}

}  // namespace
}  // namespace ddprun
