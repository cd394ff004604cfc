// What ProcessGroup throws when ranks disagree, come late, abort, or never come. Ranks are threads.

#include <catch2/catch.hpp>
#include <future>
#include <latch>

#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Ranks;

constexpr auto kFarDeadline = 50s;

// An array for each rank that outlives its group. Gloo's thread may read what is sent until the
// buffer's end, which is all right but for ThreadSanitizer: it does not see how they agree on that.
struct Arrays {
  std::vector<std::vector<double>> of_rank;
  Arrays(int ranks, std::size_t elements)
      : of_rank(static_cast<std::size_t>(ranks), std::vector<double>(elements)) {}
  Buffer operator()(const ProcessGroup& group, std::size_t count, DataType type = DataType::f32) {
    return {of_rank[static_cast<std::size_t>(group.rank())].data(), count, type};
  }
};

struct Disagreement {
  const char* what;
  std::function<void(ProcessGroup&, Arrays&)> usual;
  std::function<void(ProcessGroup&, Arrays&)> odd;  // What rank 1 calls.
};

constexpr std::size_t kMany = 100'000;

std::vector<Disagreement> disagreements() {
  const auto reduce = [](std::size_t count, ReduceOp op = ReduceOp::sum) {
    return [=](ProcessGroup& group, Arrays& arrays) { group.all_reduce(arrays(group, count), op); };
  };
  const auto broadcast = [](int root) {
    return [=](ProcessGroup& group, Arrays& arrays) { group.broadcast(arrays(group, 1), root); };
  };
  const auto reduce_integers = [](ProcessGroup& group, Arrays& arrays) {
    group.all_reduce(arrays(group, 100, DataType::i32));
  };
  const auto barrier = [](ProcessGroup& group, Arrays&) { group.barrier(); };
  return {{"the number of elements", reduce(100), reduce(101)},
          {"small and large", reduce(100), reduce(kMany)},
          {"the type", reduce(100), reduce_integers},
          {"the reduction", reduce(100), reduce(100, ReduceOp::max)},
          {"the root", broadcast(0), broadcast(2)},
          {"the operation", reduce(100), barrier}};
}

struct StayUntilAllAreDone {
  std::latch& done;
  ~StayUntilAllAreDone() { done.arrive_and_wait(); }
};

TEST_CASE("Group failure: on shm, ranks that disagree all learn at once who is the odd one",
          "[failure]") {
  for (const Disagreement& d : disagreements()) {
    INFO(d.what);
    Arrays arrays(3, kMany);
    const auto errors = Ranks{.world_size = 3, .backend = "shm", .op_timeout = kFarDeadline}.run(
        [&](auto& group) { (group.rank() == 1 ? d.odd : d.usual)(group, arrays); });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::mismatch);
      CHECK(error->where().peer == 1);
      CHECK(error->where().waited < kFarDeadline / 2);
      CHECK(std::string(error->what()).find("rank 1 on ") != std::string::npos);
    }
  }
}

TEST_CASE("Group failure: on gloo, ranks that disagree learn it at the deadline", "[failure]") {
  for (const Disagreement& d : disagreements()) {
    INFO(d.what);
    Arrays arrays(3, kMany);
    std::latch all_done(3);
    const auto errors =
        Ranks{.world_size = 3, .backend = "gloo", .op_timeout = 300ms}.run([&](auto& group) {
          group.barrier({.timeout = kFarDeadline});  // So that all are here from its beginning
          const StayUntilAllAreDone to_the_end{all_done};
          (group.rank() == 1 ? d.odd : d.usual)(group, arrays);
        });
    // Rank 2 may have got all it needs from a broadcast if it agrees on the root.
    const bool all_must_fail = d.what != std::string("the root");
    for (int r = 0; r < 3; ++r) {
      const auto& error = errors[static_cast<std::size_t>(r)];
      if (!error && !all_must_fail && r != 1) continue;
      REQUIRE(error);
      INFO(error->what());
      CHECK(error->kind() == ErrorKind::mismatch);
      if (r != 1) CHECK(error->where().peer == 1);
    }
  }
}

TEST_CASE("Group failure: on gloo, ranks that disagree learn it long before the deadline",
          "[failure]") {
  for (const Disagreement& d : disagreements()) {
    const std::string what = d.what;  // Each takes some seconds.
    if (what != "the number of elements" && what != "the operation") continue;
    INFO(d.what);
    Arrays arrays(4, kMany);
    std::latch all_done(4);
    const auto errors =
        Ranks{.world_size = 4, .backend = "gloo", .op_timeout = kFarDeadline}.run([&](auto& group) {
          group.barrier();
          const StayUntilAllAreDone to_the_end{all_done};
          (group.rank() == 1 ? d.odd : d.usual)(group, arrays);
        });
    for (std::size_t r = 0; r < errors.size(); ++r) {
      const auto& error = errors[r];
      REQUIRE(error);
      INFO(error->what());
      CHECK(error->kind() == ErrorKind::mismatch);
      if (r != 1) CHECK(error->where().peer == 1);
      CHECK(error->where().waited < kFarDeadline / 2);
    }
  }
}

TEST_CASE("Group failure: on cpu, ranks of one host that wait at different places learn it soon",
          "[failure]") {
  const auto broadcast = [](ProcessGroup& group, Arrays& arrays) {
    group.broadcast(arrays(group, 100), 1);
  };
  const auto gather = [](ProcessGroup& group, Arrays& arrays) {
    group.gather(arrays(group, 1), arrays(group, 4), 1);
  };
  const std::function<void(ProcessGroup&, Arrays&)> odd_ones[] = {broadcast, gather};
  for (const auto& odd : odd_ones) {
    Arrays arrays(4, kMany);
    std::latch all_done(4);
    const auto errors =
        Ranks{.world_size = 4, .backend = "cpu", .op_timeout = kFarDeadline}.run([&](auto& group) {
          group.barrier();
          const StayUntilAllAreDone to_the_end{all_done};
          if (group.rank() == 1) return odd(group, arrays);
          group.all_reduce(arrays(group, 100));
        });
    for (std::size_t r = 0; r < errors.size(); ++r) {
      const auto& error = errors[r];
      REQUIRE(error);
      INFO(error->what());
      CHECK(error->kind() == ErrorKind::mismatch);
      if (r != 1) CHECK(error->where().peer == 1);
      CHECK(error->where().waited < kFarDeadline / 2);
    }
  }
}

TEST_CASE("Group failure: on gloo, ranks that wait for a late one of the same call do wait",
          "[failure]") {
  Arrays arrays(3, 100);
  const auto errors =
      Ranks{.world_size = 3, .backend = "gloo", .op_timeout = kFarDeadline}.run([&](auto& group) {
        Store& store = group.store();
        if (group.rank() == 1) {  // Until both have written what they have called.
          for (int rank : {0, 2}) {
            store.get("ddprun/0/gloo/waits/" + std::to_string(rank), kFarDeadline);
          }
        }
        group.all_reduce(arrays(group, 100));
        group.all_reduce(arrays(group, 101));
      });
  for (const auto& error : errors) CHECK_FALSE(error);
}

TEST_CASE("Group failure: a message of another size than expected is a mismatch", "[failure]") {
  struct World {
    const char* backend;
    std::vector<std::string> hosts;
  };
  const World worlds[] = {{"shm", {}}, {"gloo", {}}, {"cpu", {}}, {"cpu", {"one", "one", "other"}}};
  for (const World& world : worlds) {
    INFO(world.backend << " " << world.hosts.size());
    Arrays arrays(4, 100);
    const int size = std::max(2, static_cast<int>(world.hosts.size()));
    const auto errors =
        Ranks{
            .world_size = size, .backend = world.backend, .op_timeout = 300ms, .hosts = world.hosts}
            .run([&](auto& group) {
              group.barrier({.timeout = kFarDeadline});
              if (group.rank() == 0) group.send(arrays(group, 100), 1);
              if (group.rank() == 1) group.recv(arrays(group, 99), 0);
            });
    REQUIRE(errors[1]);
    INFO(errors[1]->what());
    CHECK(errors[1]->kind() == ErrorKind::mismatch);
    CHECK(errors[1]->where().peer == 0);
  }
}

TEST_CASE("Group failure: a barrier that times out names who has not come", "[failure]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    std::promise<void> others_are_done;
    auto done = others_are_done.get_future().share();
    std::atomic<int> failed{0};
    const auto errors =
        Ranks{.world_size = 4, .backend = backend, .op_timeout = 400ms}.run([&](auto& group) {
          group.barrier({.timeout = kFarDeadline});
          if (group.rank() == 2) return done.wait();
          try {
            group.barrier();
          } catch (const Error&) {
            if (++failed == 3) others_are_done.set_value();
            throw;
          }
        });
    for (const int r : {0, 1, 3}) {
      const auto& error = errors[static_cast<std::size_t>(r)];
      REQUIRE(error);
      INFO(error->what());
      CHECK(error->kind() == ErrorKind::timed_out);
      CHECK(error->where().peer == 2);
      CHECK(error->where().rank == r);
      CHECK(error->where().operation == "barrier #2");
      CHECK(error->text().find("rank 2 on ") != std::string::npos);
    }
    CHECK_FALSE(errors[2]);
  }
}

TEST_CASE("Group failure: who comes while the others look for the reason was missing",
          "[failure]") {
  struct World {
    const char* backend;
    std::vector<std::string> hosts;
  };
  const World worlds[] = {{"gloo", {}}, {"cpu", {"one", "one", "other"}}};
  for (const World& world : worlds) {
    INFO(world.backend);
    const int size = std::max(2, static_cast<int>(world.hosts.size()));
    const int late = size - 1;
    const auto errors =
        Ranks{.world_size = size, .backend = world.backend, .hosts = world.hosts}.run(
            [&](auto& group) {
              group.barrier();
              if (group.rank() == late) {
                group.store().get("ddprun/0/gloo/failed/0", kFarDeadline);
                return group.barrier();
              }
              group.barrier({.timeout = 300ms});
            });
    REQUIRE(errors[0]);
    INFO(errors[0]->what());
    CHECK(errors[0]->kind() == ErrorKind::timed_out);
    CHECK(errors[0]->where().missing == std::vector<int>{late});
    CHECK(errors[0]->where().waited < kFarDeadline / 2);
    REQUIRE(errors[static_cast<std::size_t>(late)]);
  }
}

TEST_CASE("Group failure: who comes after the others have given up is told so", "[failure]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    std::promise<void> other_is_done;
    Arrays arrays(4, 1);
    const auto errors = Ranks{.backend = backend, .op_timeout = 300ms}.run([&](auto& group) {
      if (group.rank() == 1) {
        other_is_done.get_future().wait();
        // What the other had contributed is there; from the second at the latest it is missed.
        group.all_reduce(arrays(group, 1));
        group.all_reduce(arrays(group, 1));
        return;
      }
      try {
        group.all_reduce(arrays(group, 1));
      } catch (const Error&) {
        other_is_done.set_value();
        throw;
      }
    });
    REQUIRE(errors[1]);
    INFO(errors[1]->what());
    CHECK((errors[1]->kind() == ErrorKind::timed_out || errors[1]->kind() == ErrorKind::peer_lost));
    CHECK(errors[1]->where().peer == 0);
  }
}

TEST_CASE("Group failure: after an error the group is dead, and says since when", "[failure]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    INFO(backend);
    std::atomic<int> right{0};
    Arrays arrays(2, 2);
    const auto errors =
        Ranks{.world_size = 2, .backend = backend, .op_timeout = 300ms}.run([&](auto& group) {
          try {
            group.all_reduce(arrays(group, group.rank() == 0 ? 1 : 2));
          } catch (const Error&) {
          }
          for (int i = 0; i < 2; ++i) {
            try {
              i == 0 ? group.barrier() : group.all_reduce_async(arrays(group, 1)).wait();
            } catch (const Error& error) {
              const bool names_cause = error.text().find("all_reduce #1") != std::string::npos;
              if (error.kind() == ErrorKind::aborted && names_cause) ++right;
            }
          }
        });
    CHECK(test::outcome(errors) == "all well");
    CHECK(right.load() == 4);
  }
}

void check_abort(const char* backend) {
  INFO(backend);
  std::promise<void> aborted, busy;
  auto after_abort = aborted.get_future().share();
  Arrays arrays(3, 1);
  const auto errors =
      Ranks{.world_size = 3, .backend = backend, .op_timeout = kFarDeadline}.run([&](auto& group) {
        if (group.rank() == 0) {
          const Work hello = group.send_async(arrays(group, 1), 1);
          Work work = group.all_reduce_async(arrays(group, 1));
          busy.get_future().wait();  // So that the all_reduce has begun, or is about to.
          group.abort();
          aborted.set_value();
          work.wait();
        } else if (group.rank() == 1) {
          group.recv(arrays(group, 1), 0);
          busy.set_value();
          group.all_reduce(arrays(group, 1));
          group.barrier();
        } else {
          after_abort.wait();  // Without it no rank can finish.
          group.all_reduce(arrays(group, 1));
          group.barrier();
        }
      });
  REQUIRE(errors[0]);
  CHECK(errors[0]->kind() == ErrorKind::aborted);
  for (const int r : {1, 2}) {
    const auto& error = errors[static_cast<std::size_t>(r)];
    REQUIRE(error);
    INFO(error->what());
    CHECK(error->kind() == ErrorKind::peer_lost);
    CHECK(error->where().peer == 0);
    CHECK(error->where().waited < kFarDeadline / 2);
  }
}

TEST_CASE("Group failure: abort() frees a waiting rank and tells the others", "[failure]") {
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    // The last rank's part arrives before the aborting rank looks up, or after: both must be seen.
    for (int round = 0; round < 20; ++round) check_abort(backend);
  }
}

TEST_CASE("Group failure: ranks that never join are named", "[failure]") {
  const test::TemporaryDirectory directory;
  std::vector<std::future<std::string>> texts;
  const Ranks ranks{.world_size = 4, .init_timeout = 300ms};
  for (const int rank : {0, 2}) {
    texts.push_back(std::async(std::launch::async, [&, rank] {
      try {
        ProcessGroup::init(ranks.options(directory / "store", rank));
      } catch (const Error& error) {
        return error.kind() == ErrorKind::timed_out ? error.text() : "another kind";
      }
      return std::string("joined");
    }));
  }
  for (auto& text : texts) CHECK(text.get() == "no sign of rank(s) 1, 3");
}

TEST_CASE("Group failure: two workers of one rank are a mismatch", "[failure]") {
  const test::TemporaryDirectory directory;
  const Ranks ranks{.world_size = 2, .init_timeout = 300ms};
  std::atomic<int> mismatches{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      try {
        ProcessGroup::init(ranks.options(directory / "store", 1));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::mismatch && error.where().rank == 1) ++mismatches;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(mismatches.load() == 1);
}

TEST_CASE("Group failure: ranks that want different backends are told who wants what",
          "[failure]") {
  const test::TemporaryDirectory directory;
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Ranks ranks{
          .world_size = 2, .backend = rank == 0 ? "shm" : "gloo", .init_timeout = 20s};
      try {
        ProcessGroup::init(ranks.options(directory / "store", rank));
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.text();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(texts[0] == texts[1]);
  CHECK(texts[0].find("requests the backend gloo, but rank 0") != std::string::npos);
}

}  // namespace
}  // namespace ddprun
