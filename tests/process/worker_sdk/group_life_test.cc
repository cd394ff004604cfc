// The life of a ProcessGroup: handles that move and are shared, groups one after the other, threads
// and forked children that must not use one, deadlines without end, threads that cannot be had.

#include <atomic>
#include <catch2/catch.hpp>
#include <future>

#include "tests/support/forked_ranks.h"
#include "tests/support/no_threads.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::ForkedRanks;
using test::Ranks;

// Catch2 may not be used in the ranks' threads.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

float sum_of(ProcessGroup& group, float mine) {
  group.all_reduce(buffer(&mine, 1));
  return mine;
}

// The text of the Error(bad_argument) that `call` throws.
template <class Call>
std::string misuse(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::bad_argument ? error.what() : "another kind";
  }
  return "nothing";
}

TEST_CASE("Group life: what was moved from says so, whatever it is asked") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    ProcessGroup taken = std::move(group);
    const std::vector<std::function<void()>> calls = {[&] { (void)group.rank(); },
                                                      [&] { (void)group.backend(); },
                                                      [&] { (void)group.device(); },
                                                      [&] { (void)group.host_of(0); },
                                                      [&] { group.set_phase("x"); },
                                                      [&] { (void)group.store(); },
                                                      [&] { (void)sum_of(group, 1); },
                                                      [&] { group.barrier(); },
                                                      [&] { (void)group.split(0); },
                                                      [&] { (void)group.shrink(); },
                                                      [&] { group.use_stream({}); },
                                                      [&] { group.copy(nullptr, nullptr, 0); },
                                                      [&] { group.zero(nullptr, 0); },
                                                      [&] { (void)group.allocate(1); },
                                                      [&] { (void)group.share(); },
                                                      [&] { (void)group.barrier({.timeout = 1s}); },
                                                      [&] { DistributedDataParallel(group, {}); }};
    for (const auto& call : calls) {
      const std::string text = misuse(call);
      require(text.find("was moved from") != std::string::npos, text);
    }
    group.abort();  // Of nothing.
    require(sum_of(taken, 1) == 2, "the group does not work where it was moved to");
  });
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("Group life: DistributedDataParallel does not need the handle that it was given") {
  for (const bool destroy : {false, true}) {
    const auto errors = Ranks{}.run([&](ProcessGroup& group) {
      std::vector<float> value(4, 1);
      std::optional<ProcessGroup> handle(std::move(group));
      DistributedDataParallel ddp(*handle, {{"w", buffer(value.data(), 4), {4}}});
      std::optional<ProcessGroup> moved;
      if (!destroy) moved.emplace(std::move(*handle));
      handle.reset();
      for (int step = 0; step < 3; ++step) {
        auto* gradient = static_cast<float*>(ddp.gradient(0).data);
        std::fill_n(gradient, 4, static_cast<float>(step));
        ddp.begin_backward();
        ddp.mark_ready(0);
        ddp.finish_backward();
        require(gradient[3] == static_cast<float>(step), "another average");
      }
    });
    CHECK(test::outcome(errors) == "all well");
  }
}

TEST_CASE("Group life: groups may follow each other in one process") {
  const test::TemporaryDirectory directory;
  const Ranks ranks{.world_size = 3};
  std::vector<std::future<std::string>> ends;
  for (int rank = 0; rank < 3; ++rank) {
    ends.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
      try {
        for (int life = 0; life < 3; ++life) {
          auto group = ProcessGroup::init(ranks.options(directory / "store", rank));
          auto half = group.split(rank == 0 ? 0 : 1);
          require(sum_of(group, 1) == 3, "the group");
          require(sum_of(*half, 1) == (rank == 0 ? 1 : 2), "its part");
          group.store().set("life", "any");
        }
      } catch (const Error& error) {
        return error.what();
      }
      return "all well";
    }));
  }
  for (auto& end : ends) CHECK(end.get() == "all well");
}

TEST_CASE("Group life: rank 0 may host the store of each of them") {
  const std::uint16_t port =
      worker_sdk::StoreHost("127.0.0.1", 0, worker_sdk::Clock::now() + 10s).port();
  const auto options = [&](int rank) {
    InitOptions result = Ranks{}.options("", rank);
    result.init_method = "tcp://127.0.0.1:" + std::to_string(port);
    return result;
  };
  ForkedRanks ranks(2, options, [&](ProcessGroup& first, const std::function<void()>&) {
    const int rank = first.rank();
    require(sum_of(first, 1) == 2, "the first life");
    std::optional<ProcessGroup> group(std::move(first));
    for (int life = 0; life < 3; ++life) {
      group.reset();
      group.emplace(ProcessGroup::init(options(rank)));
      require(sum_of(*group, 1) == 2, "a later life");
    }
  });
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r).text == "");
}

TEST_CASE("Group life: a rank 0 that lives on may host one job of fresh workers after the other") {
  const std::uint16_t port =
      worker_sdk::StoreHost("127.0.0.1", 0, worker_sdk::Clock::now() + 10s).port();
  const auto join_as = [&](int rank) {
    InitOptions options = Ranks{}.options("", rank);
    options.init_method = "tcp://127.0.0.1:" + std::to_string(port);
    try {
      auto group = ProcessGroup::init(options);
      const bool right = sum_of(group, 1) == 2;
      group.barrier();  // Rank 0 hosts the store.
      return right;
    } catch (const Error&) {
      return false;
    }
  };
  const auto in_child = [](const std::function<bool()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(body() ? 0 : 1);
    return pid;
  };
  const auto is_well = [](pid_t pid) {
    int status = -1;
    return ::waitpid(pid, &status, 0) == pid && status == 0;
  };
  int ends[2];  // Through which rank 0 reports that the store of the job before is gone.
  REQUIRE(::pipe(ends) == 0);
  const pid_t host = in_child([&] {
    bool well = true;
    for (int job = 0; job < 3; ++job) well = ::write(ends[1], "x", 1) == 1 && join_as(0) && well;
    return well;
  });
  for (int job = 0; job < 3; ++job) {
    char gone = 0;
    REQUIRE(::read(ends[0], &gone, 1) == 1);
    CHECK(is_well(in_child([&] { return join_as(1); })));
  }
  CHECK(is_well(host));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("Group life: a second init() beside the first group is refused, and says so") {
  const test::TemporaryDirectory directory;
  const Ranks ranks{};
  std::string text;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto options = ranks.options(directory / "store", rank);
      auto group = ProcessGroup::init(options);
      try {
        if (rank == 1) (void)ProcessGroup::init(options);
      } catch (const Error& error) {
        text = error.what();
      }
      group.barrier();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_THAT(text, Contains("was init() called twice, while the first group still exists"));
}

TEST_CASE("Group life: of two threads in one group the second is refused, the first goes on") {
  std::promise<void> refused;
  auto ready = refused.get_future();
  const auto errors = Ranks{}.run([&](ProcessGroup& group) {
    if (group.rank() == 1) {
      (void)ready.wait_for(60s);
      group.barrier();
      return;
    }
    std::atomic<int> refusals{0};
    const auto call = [&] {
      const std::string text = misuse([&] { group.barrier(); });
      if (text == "nothing") return;
      if (text.find("another thread is in a call of this group") != std::string::npos) ++refusals;
      refused.set_value();
    };
    auto one = std::async(std::launch::async, call), two = std::async(std::launch::async, call);
    one.get();
    two.get();
    require(refusals == 1, std::to_string(refusals.load()) + " of two threads were refused");
  });
  CHECK(test::outcome(errors) == "all well");
}

TEST_CASE("Group life: a forked child is refused, may end its copy, and disturbs nobody") {
  for (const char* backend : {"shm", "gloo"}) {
    ForkedRanks ranks({.backend = backend}, [](ProcessGroup& group, const auto&) {
      float value = 1;
      group.all_reduce_async(buffer(&value, 1)).wait();  // The child lacks the thread of it.
      const pid_t child = ::fork();
      if (child == 0) {
        ProcessGroup copy = std::move(group);
        const bool all_refused =
            misuse([&] { copy.barrier(); }).find("forked off") != std::string::npos &&
            misuse([&] { (void)copy.store(); }).find("forked off") != std::string::npos &&
            misuse([&] { (void)sum_of(copy, 1); }).find("forked off") != std::string::npos &&
            copy.world_size() == 2;
        copy.abort();
        { const ProcessGroup ends = std::move(copy); }
        ::_exit(all_refused ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child was not refused");
      require(sum_of(group, 1) == 2, "the parents");
    });
    for (int r = 0; r < 2; ++r) {
      const auto report = ranks.report(r);
      INFO(backend);
      CHECK(report.came);
      CHECK(report.text == "");
    }
  }
}

TEST_CASE("Group life: a deadline may be as far away as its type allows") {
  const auto ever = std::chrono::milliseconds::max();
  for (const char* backend : {"shm", "gloo"}) {
    std::promise<void> late;
    auto goes = late.get_future().share();
    const Ranks ranks{.backend = backend, .op_timeout = ever, .init_timeout = ever};
    const auto errors = ranks.run([&](ProcessGroup& group) {
      if (group.rank() == 1) {
        goes.wait();
        // Rank 0 is on its way: an overflow ends its barrier at once.
        worker_sdk::retry_until(worker_sdk::Clock::now() + 20ms, [] { return false; });
      } else {
        late.set_value();
      }
      group.barrier({.timeout = ever});
      float value = 1;
      auto work = group.all_reduce_async(buffer(&value, 1), ReduceOp::sum, {.timeout = ever});
      require(work.wait_for(ever) && value == 2, "the sum");
      group.barrier();
    });
    CHECK(test::outcome(errors) == "all well");
  }
}

TEST_CASE("Group life: an operation whose thread cannot be had was never called") {
  ForkedRanks ranks(Ranks{}, [](ProcessGroup& group, const auto&) {
    std::vector<float> gone(1000, 7);
    std::string text;
    try {
      const test::NoThreads none;
      (void)group.all_reduce_async(buffer(gone.data(), gone.size()));
    } catch (const Error& error) {
      text = error.what();
    }
    require(text.find("starting the thread ddprun-queue") != std::string::npos, text);
    float value = 1;
    group.all_reduce_async(buffer(&value, 1)).wait();
    require(value == 2 && sum_of(group, 1) == 2, "the operations after it");
    require(gone == std::vector<float>(1000, 7), "the array of the one that was refused");
  });
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r).text == "");
}

}  // namespace
}  // namespace ddprun
