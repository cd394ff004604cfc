#include "common/store_sockets/store_clients.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/system/descriptors.h"

namespace ddprun::store {
namespace {

struct Pair {
  Pair() {
    std::array<int, 2> fds;
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
  void write() const { REQUIRE(::send(theirs.get(), "x", 1, 0) == 1); }
  bool receive() const {
    char byte;
    return ::recv(ours.get(), &byte, 1, 0) == 1;
  }

  UniqueFd ours, theirs;
};

struct Readiness {
  int fd;
  std::uint32_t events;
  bool operator==(const Readiness&) const = default;
};

struct Fixture {
  void poll() {
    set.report([this](int fd, std::uint32_t events) {
      reported.push_back({fd, events});
      if (react) react(fd);
    });
  }
  bool is_ready() const {
    pollfd entry{set.descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }

  ReadySockets set = ReadySockets::make().value();
  std::vector<Readiness> reported;
  std::function<void(int)> react;
};

TEST_CASE("Ready sockets: a socket is told of again until it has been read", "[store]") {
  Fixture f;
  const Pair pair;
  REQUIRE(f.set.add(pair.ours.get(), ReadySockets::kReadable).has_value());
  f.poll();
  CHECK(f.reported.empty());
  CHECK_FALSE(f.is_ready());
  pair.write();
  CHECK(f.is_ready());
  f.poll();
  f.poll();
  CHECK(f.reported.size() >= 2);
  CHECK(f.reported[0] == Readiness{pair.ours.get(), ReadySockets::kReadable});
  f.react = [&](int) { CHECK(pair.receive()); };
  f.poll();
  const std::size_t before = f.reported.size();
  f.poll();
  CHECK(f.reported.size() == before);
}

TEST_CASE("Ready sockets: only what is waited for is told", "[store]") {
  Fixture f;
  const Pair pair;
  REQUIRE(f.set.add(pair.ours.get(), ReadySockets::kWritable).has_value());
  pair.write();
  f.poll();
  CHECK(f.reported.front() == Readiness{pair.ours.get(), ReadySockets::kWritable});
  f.set.change(pair.ours.get(), ReadySockets::kNothing);
  f.reported.clear();
  f.poll();
  CHECK(f.reported.empty());
  f.set.change(pair.ours.get(), ReadySockets::kReadable | ReadySockets::kWritable);
  f.react = [&](int) { f.set.stop(); };
  f.poll();
  CHECK(f.reported.front() ==
        Readiness{pair.ours.get(), ReadySockets::kReadable | ReadySockets::kWritable});
}

TEST_CASE("Ready sockets: a peer that is gone is told as both", "[store]") {
  Fixture f;
  Pair pair;
  REQUIRE(f.set.add(pair.ours.get(), ReadySockets::kReadable).has_value());
  pair.theirs.reset();
  f.react = [&](int) { f.set.stop(); };
  f.poll();
  CHECK(f.reported == std::vector<Readiness>{
                          {pair.ours.get(), ReadySockets::kReadable | ReadySockets::kWritable}});
}

TEST_CASE("Ready sockets: after stop() nobody is told of, not even of the same round", "[store]") {
  Fixture f;
  const Pair one, two;
  for (const Pair* pair : {&one, &two}) {
    REQUIRE(f.set.add(pair->ours.get(), ReadySockets::kReadable).has_value());
    pair->write();
  }
  f.react = [&](int) { f.set.stop(); };
  f.poll();
  CHECK(f.reported.size() == 1);
}

TEST_CASE("Ready sockets: one that is removed is not reported, whoever else holds it", "[store]") {
  Fixture f;
  Pair pair;
  const UniqueFd of_a_child(::dup(pair.ours.get()));
  REQUIRE(f.set.add(pair.ours.get(), ReadySockets::kReadable).has_value());
  pair.theirs.reset();
  CHECK(f.is_ready());
  f.set.remove(pair.ours.get());
  pair.ours.reset();
  CHECK_FALSE(f.is_ready());
}

TEST_CASE("Ready sockets: busy sockets leave others of the loop their turn", "[store]") {
  Fixture f;
  const Pair one, two;
  for (const Pair* pair : {&one, &two}) {
    REQUIRE(f.set.add(pair->ours.get(), ReadySockets::kReadable).has_value());
    pair->write();  // Never read.
  }
  f.poll();  // Comes to an end.
  CHECK(f.reported.size() > 2);
  CHECK(f.is_ready());
}

}  // namespace
}  // namespace ddprun::store
