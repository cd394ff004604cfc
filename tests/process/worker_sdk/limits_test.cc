// Ranks at the limits of the system, which have no thread or descriptor left: what they throw is an
// Error that names the limit, and the other ranks learn it at once, as their deadlines are far.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <future>

#include "tests/support/forked_ranks.h"
#include "tests/support/no_threads.h"
#include "worker_sdk/base/locality.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/store/tcp_store.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::ForkedRanks;
using test::NoThreads;
using test::Ranks;
using test::Report;
using worker_sdk::Clock;
using worker_sdk::StoreHost;

// No descriptor above those that are open, for the rest of this process's life.
void take_descriptors() {
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next.get());
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A store in a process of its own, which may have no descriptor left for more than `clients`.
class StoreProcess {
 public:
  explicit StoreProcess(int clients = 1000) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const StoreHost host("127.0.0.1", 0, Clock::now() + 50s);
      const std::uint16_t port = host.port();
      std::vector<UniqueFd> reserve;
      for (int i = 0; i < clients; ++i) reserve.emplace_back(::open("/dev/null", O_RDONLY));
      take_descriptors();
      reserve.clear();
      if (::write(ends[1], &port, sizeof port) != sizeof port) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    CHECK(::read(ends[0], &port_, sizeof port_) == sizeof port_);
    ::close(ends[0]);
  }
  ~StoreProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StoreProcess(const StoreProcess&) = delete;

  // Joined over TCP, as with a launcher.
  InitOptions options(int rank, int world_size) const {
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port_).c_str(), 1);
    for (const char* name : {"RANK", "LOCAL_RANK"}) ::setenv(name, std::to_string(rank).c_str(), 1);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
      ::setenv(name, std::to_string(world_size).c_str(), 1);
    InitOptions result;
    result.init_timeout = result.op_timeout = 50s;
    return result;
  }

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

template <class Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code().message() + ": " + error.where().operation + ": " + error.text();
  } catch (const std::exception& error) {
    return std::string("no Error, but ") + error.what();
  }
  return "nothing";
}

TEST_CASE("Limits: an Error that quotes another of its kind says the kind once") {
  const Error inner(ErrorKind::system, {.operation = "checkpoint"}, "no space");
  CHECK(std::string(inner.what()) == "checkpoint: no space: refused by the system");
  const Error outer(ErrorKind::system, {.rank = 1}, std::string("folder: ") + inner.what());
  CHECK(std::string(outer.what()) == "rank 1: folder: checkpoint: no space: refused by the system");
  CHECK(outer.text() == "folder: checkpoint: no space");
  const Error other(ErrorKind::aborted, {}, std::string("dead since: ") + inner.what());
  CHECK(other.text() == "dead since: checkpoint: no space: refused by the system");
}

TEST_CASE("Limits: what is no Error becomes one, with the limit that is behind it") {
  using worker_sdk::as_error;
  const std::system_error full(EMFILE, std::generic_category(), "pipe");
  CHECK_THAT(as_error(full, {.rank = 3}).what(),
             Contains("rank 3: pipe: Too many open files") && Contains("(ulimit -n)"));
  const std::system_error none(EAGAIN, std::generic_category(), "clone");
  CHECK_THAT(as_error(none, {}).what(), Contains("(ulimit -u)"));
  CHECK_THAT(as_error(std::bad_alloc(), {}).what(), Contains("no memory left"));
  CHECK(as_error(Error(ErrorKind::corrupt, {}, "x"), {.rank = 3}).where().rank == -1);
}

TEST_CASE("Limits: without a thread the store, the resolver and a queue throw Error") {
  StoreHost host("127.0.0.1", 0, Clock::now() + 50s);
  std::string hosting, resolving;
  {
    const NoThreads none;
    hosting = thrown([] { StoreHost("127.0.0.1", 0, Clock::now() + 50s); });
    resolving = thrown([&] { (void)connect_tcp_store("localhost", host.port(), 50s); });
  }
  CHECK_THAT(hosting, Contains("refused by the system: hosting the store: starting the thread "
                               "ddprun-store: Resource temporarily unavailable"));
  CHECK_THAT(resolving, Contains("refused by the system: ") && Contains("ddprun-resolve"));
}

TEST_CASE("Limits: a rank without a thread is named on all ranks that connect") {
  const test::TemporaryDirectory directory;
  ForkedRanks ranks(
      3,
      [&](int rank) {
        if (rank == 1) static NoThreads none;
        return Ranks{.world_size = 3, .backend = "gloo"}.options(directory / "store", rank);
      },
      [](ProcessGroup&, const auto&) {});
  for (int r = 0; r < 3; ++r) {
    const Report report = ranks.report(r);
    INFO(r << ": " << report.text);
    REQUIRE(report.threw);
    CHECK(report.kind == ErrorKind::unreachable);
    CHECK(report.peer == 1);
    CHECK_THAT(report.text, Contains("joining the job: rank 1 on " + worker_sdk::host_name() +
                                     " cannot connect: starting the thread ddprun-"));
  }
}

TEST_CASE("Limits: a rank that has no descriptor for one more group is named on all its ranks") {
  const StoreProcess store;
  ForkedRanks ranks(
      3, [&](int rank) { return store.options(rank, 3); },
      [](ProcessGroup& group, const auto&) {
        if (group.rank() == 2) take_descriptors();
        (void)group.split(0);
      });
  for (int r = 0; r < 3; ++r) {
    const Report report = ranks.report(r);
    INFO(r << ": " << report.text);
    REQUIRE(report.threw);
    CHECK(report.kind == ErrorKind::system);
    CHECK_THAT(report.text, Contains("Too many open files") && Contains("(ulimit -n)"));
    if (r != 2) CHECK(report.peer == 2);
    if (r != 2) CHECK_THAT(report.text, Contains("rank 2 on "));
  }
}

TEST_CASE("Limits: a store that has no descriptor for one more group says so, and goes on") {
  const StoreProcess store(3);
  ForkedRanks ranks(
      2, [&](int rank) { return store.options(rank, 2); },
      [](ProcessGroup& group, const auto& ready) {
        try {
          (void)group.split(0);
        } catch (const Error&) {
          group.store().set("still there", "1");
          if (group.store().get("still there", 50s) == "1") ready();
          throw;
        }
      });
  for (int r = 0; r < 2; ++r) {
    CHECK(ranks.wait_ready(r));
    const Report report = ranks.report(r);
    INFO(r << ": " << report.text);
    REQUIRE(report.threw);
    CHECK(report.kind == ErrorKind::unreachable);
    CHECK_THAT(report.text,
               Contains("closed the connection before its first answer") && Contains("ulimit -n"));
  }
}

TEST_CASE("Limits: a checkpoint without a thread to write it is a failure on all ranks") {
  const test::TemporaryDirectory directory;
  ForkedRanks ranks(Ranks{}, [&](ProcessGroup& group, const auto&) {
    CheckpointWriter writer(group, directory / "c");
    float value = 1;
    const std::vector pieces{even_piece(group, "value", buffer(&value, 1))};
    {
      std::optional<NoThreads> none;
      if (group.rank() == 1) none.emplace();
      writer.save_async(1, pieces);
    }
    const std::string text = thrown([&] { writer.wait(); });
    writer.save(2, pieces);
    if (latest_checkpoint(directory / "c")) throw Error(ErrorKind::mismatch, {.peer = 7}, text);
  });
  for (int r = 0; r < 2; ++r) {
    const Report report = ranks.report(r);
    INFO(report.text);
    CHECK(report.peer == 7);
    CHECK_THAT(report.text, Contains("rank 1 on ") && Contains("starting the thread ddprun-save"));
  }
}

TEST_CASE("Limits: shutdown() ends the blocking call of another thread") {
  const auto errors = Ranks{.op_timeout = 50s}.run([](ProcessGroup& group) {
    std::string text;
    if (group.rank() == 0) {
      std::promise<void> begins;
      std::thread caller([&] {
        begins.set_value();
        text = thrown([&] { group.barrier(); });
      });
      begins.get_future().wait();
      (void)group.shutdown(200ms);
      caller.join();
      group.abort();
    } else {  // In no call until rank 0 has left.
      text = thrown([&] { group.recv(buffer(static_cast<float*>(nullptr), 0), 0); });
    }
    if (group.rank() == 0 && !text.starts_with("aborted")) throw Error(ErrorKind::system, {}, text);
  });
  CHECK(test::outcome(errors) == "all well");
}

// A name that leads to this host only, but is not the address itself.
TEST_CASE("Limits: a store for all addresses is reached over IPv6 and IPv4") {
  const UniqueFd any(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (!any || ::bind(any.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) != 0) {
    WARN("this machine has no IPv6");
    return;
  }
  StoreHost host("127.1", 0, Clock::now() + 50s);
  for (const char* address : {"::1", "127.0.0.1"}) {
    const auto store = connect_tcp_store(address, host.port(), 5s);
    store->set("over", address);
    CHECK(store->get("over", 5s) == address);
  }
}

}  // namespace
}  // namespace ddprun
