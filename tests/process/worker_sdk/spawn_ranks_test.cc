// spawn(): ranks that find each other, fail in every way, and leave nothing behind. The parent has
// no threads, as spawn() asks for.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include "ddprun/ddprun.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;

// What spawn() throws.
std::optional<SpawnError> failure(int n, const std::function<void(int)>& body,
                                  const SpawnOptions& options = {}) {
  try {
    spawn(n, body, options);
    return std::nullopt;
  } catch (const SpawnError& error) {
    return error;
  }
}

void wait_for_a_signal() {
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("Spawn: the ranks find each other and share memory") {
  const int base = 40;  // What the parent knows, they know.
  CHECK_FALSE(failure(3, [&](int rank) {
    ProcessGroup group = ProcessGroup::init();
    float sum = static_cast<float>(base + rank);
    group.all_reduce(buffer(&sum, 1));
    const bool right = group.rank() == rank && group.local_rank() == rank &&
                       group.world_size() == 3 && group.backend() == "shm" && sum == 123;
    if (!right) throw std::logic_error("backend " + group.backend() + ", " + std::to_string(sum));
  }));
  CHECK_FALSE(failure(1, [](int) { (void)ProcessGroup::init(); }));
}

// Whether a child ends as soon as it is forked, and the parent goes on only then.
bool dies_at_start = false;

TEST_CASE("Spawn: a rank that dies before it learns the port is an error, not a SIGPIPE") {
  ::pthread_atfork(
      nullptr,
      [] {
        siginfo_t info{};
        if (dies_at_start) ::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
      },
      [] {
        if (dies_at_start) ::_exit(3);
      });
  dies_at_start = true;
  const auto error = failure(1, [](int) {});
  dies_at_start = false;
  REQUIRE(error);
  CHECK(error->exit_code() == 3);
}

TEST_CASE("Spawn: the ranks have no part in the link of the worker that spawned them") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  ::setenv("DDPRUN_WORKER_LINK", std::to_string(ends[1]).c_str(), 1);
  const auto error = failure(2, [](int rank) {
    if (std::getenv("DDPRUN_WORKER_LINK")) throw std::logic_error("it has the parent's link");
    elastic::Job job;
    job.run(2, [&](elastic::Step& step) {
      if (step.rank() != rank || step.world_size() != 2) throw std::logic_error("another seat");
      step.commit();
    });
  });
  ::unsetenv("DDPRUN_WORKER_LINK");
  CHECK((error ? error->what() : std::string("all well")) == "all well");
  char byte = 0;
  CHECK(::recv(ends[0], &byte, 1, MSG_DONTWAIT) < 0);  // Nothing was sent.
  ::close(ends[0]), ::close(ends[1]);
}

TEST_CASE("Spawn: the first exception comes back in words, its peers' laments do not") {
  for (const int culprit : {0, 1, 2}) {
    const auto error = failure(3, [&](int rank) {
      ProcessGroup group = ProcessGroup::init();
      group.barrier();
      if (rank == culprit) throw std::runtime_error("the loss is NaN");
      group.barrier();
    });
    REQUIRE(error);
    CHECK(error->where().peer == culprit);
    CHECK(error->exit_code() == 1);
    CHECK_THAT(error->what(), Contains("rank " + std::to_string(culprit) + " failed") &&
                                  Contains("std::runtime_error: the loss is NaN"));
  }
}

TEST_CASE("Spawn: who only lost a peer is not the first one to fail, though it ended first") {
  const auto body = [](int rank) {
    ProcessGroup group = ProcessGroup::init();
    if (rank == 0) throw Error(ErrorKind::peer_lost, {}, "a lament");
    try {
      group.barrier();
    } catch (const Error&) {  // Rank 0 is gone.
      throw std::runtime_error("the cause");
    }
  };
  const auto error = failure(2, body, {.grace = std::chrono::minutes(1)});
  REQUIRE(error);
  CHECK(error->where().peer == 1);
  CHECK_THAT(error->what(), Contains("the cause"));

  const auto alone = failure(2, [](int rank) {
    if (rank == 0) throw Error(ErrorKind::peer_lost, {}, "a lament");
  });
  REQUIRE(alone);  // No other rank has a better reason.
  CHECK_THAT(alone->what(), Contains("rank 0 failed: a lament"));
}

TEST_CASE("Spawn: exit codes and signals come back, and the others are ended") {
  const auto exited = failure(2, [](int rank) { rank == 1 ? ::_exit(7) : wait_for_a_signal(); });
  REQUIRE(exited);
  CHECK(exited->exit_code() == 7);
  CHECK_THAT(exited->what(), Contains("rank 1 failed: it exited with code 7"));

  const auto killed = failure(
      2, [](int rank) { rank == 0 ? static_cast<void>(::raise(SIGKILL)) : wait_for_a_signal(); });
  REQUIRE(killed);
  CHECK(killed->signal() == SIGKILL);
  CHECK(killed->exit_code() == 137);
  CHECK_THAT(killed->what(), Contains("rank 0 failed: it was killed by signal 9"));
}

TEST_CASE("Spawn: who is deaf to SIGTERM is killed when the grace is over") {
  const test::TemporaryDirectory directory;
  const auto error = failure(2,
                             [&](int rank) {
                               ::signal(SIGTERM, SIG_IGN);
                               ProcessGroup group = ProcessGroup::init();
                               if (rank == 0) std::ofstream(directory / "pid") << ::getpid();
                               group.barrier();
                               if (rank == 1) throw std::runtime_error("I");
                               wait_for_a_signal();
                             },
                             {.grace = std::chrono::milliseconds(50)});
  REQUIRE(error);
  CHECK(error->where().peer == 1);
  pid_t pid = 0;
  std::ifstream(directory / "pid") >> pid;
  REQUIRE(pid > 0);
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("Spawn: a rank that failed is noticed where SIGCHLD is ignored") {
  struct sigaction before {};
  for (const int flags : {0, SA_NOCLDWAIT}) {
    struct sigaction ignored {};
    ignored.sa_handler = flags == 0 ? SIG_IGN : SIG_DFL;
    ignored.sa_flags = flags;
    REQUIRE(::sigaction(SIGCHLD, &ignored, &before) == 0);
    const auto error = failure(2, [](int rank) {
      if (rank == 1) throw std::runtime_error("x");
    });
    const auto killed = failure(1, [](int) { ::raise(SIGKILL); });
    const auto none = failure(2, [](int) {});
    struct sigaction after {};
    REQUIRE(::sigaction(SIGCHLD, &before, &after) == 0);
    CHECK(after.sa_handler == ignored.sa_handler);
    CHECK((after.sa_flags & SA_NOCLDWAIT) == flags);
    REQUIRE(error);
    CHECK(error->where().peer == 1);
    CHECK_THAT(error->what(), Contains("std::runtime_error: x"));
    REQUIRE(killed);
    CHECK(killed->signal() == SIGKILL);
    CHECK_FALSE(none);
  }
}

void wait_for_any_child(int) {
  const int before = errno;
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  errno = before;
}

TEST_CASE("Spawn: a rank that a handler of SIGCHLD has waited for is not taken for a good one") {
  struct sigaction handler {
  }, before{};
  handler.sa_handler = wait_for_any_child;
  REQUIRE(::sigaction(SIGCHLD, &handler, &before) == 0);
  const auto error = failure(1, [](int) { ::_exit(3); });
  REQUIRE(::sigaction(SIGCHLD, &before, nullptr) == 0);
  REQUIRE(error);
  CHECK(error->where().peer == 0);
}

TEST_CASE("Spawn: no ranks are none, threads and no function are refused") {
  CHECK_THROWS_WITH(spawn(0, [](int) {}), Contains("cannot spawn 0 ranks"));
  CHECK_THROWS_WITH(spawn(1, {}), Contains("there is no function"));
#ifndef __SANITIZE_THREAD__
  std::promise<void> done;
  std::thread other([&] { done.get_future().wait(); });
  CHECK_THROWS_WITH(spawn(1, [](int) {}), Contains("threads already"));
  done.set_value();
  other.join();
#endif
}

}  // namespace ddprun
