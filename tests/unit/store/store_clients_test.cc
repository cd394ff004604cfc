#include "common/store_sockets/store_clients.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/store_requests.h"

namespace ddprun::store {
namespace {

using test::StoreRequests;

struct Fixture {
  explicit Fixture(const StoreClientsOptions& options = {})
      : clients(StoreClients::make(options, [this](const std::string& text) {
                  complaints.push_back(text);
                }).value()) {}

  // Returns the peer's end. `held`: another holder of our end, as a forked child is.
  UniqueFd connect(UniqueFd* held = nullptr) {
    std::array<int, 2> fds;
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    if (held) held->reset(::dup(fds[0]));
    taken = clients->take(UniqueFd(fds[0]), "peer");
    return UniqueFd(fds[1]);
  }
  bool has_work() const {
    pollfd entry{clients->descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  std::string query(const UniqueFd& peer, const std::string& request) const {
    REQUIRE(::send(peer.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(request.size()));
    clients->serve();
    char answer[100];
    const ssize_t got = ::recv(peer.get(), answer, sizeof(answer), 0);
    return {answer, got > 0 ? static_cast<std::size_t>(got) : 0};
  }

  std::vector<std::string> complaints;
  std::unique_ptr<StoreClients> clients;
  bool taken = false;
};

TEST_CASE(
    "Store clients: one that hung up is forgotten, also while a forked child holds its socket",
    "[store]") {
  Fixture f;
  UniqueFd of_a_child;
  UniqueFd peer = f.connect(&of_a_child);
  CHECK(f.query(peer, StoreRequests::validate() + StoreRequests().key_count()) == test::i64(0));
  peer.reset();
  CHECK(f.has_work());
  f.clients->serve();
  CHECK(f.clients->connection_count() == 0);
  CHECK_FALSE(f.has_work());
  CHECK(f.complaints.empty());
}

TEST_CASE("Store clients: one beyond the limit is refused, and why one was dropped is told",
          "[store]") {
  Fixture f({.connections_max = 1});
  const UniqueFd first = f.connect();
  CHECK(f.taken);
  const UniqueFd second = f.connect();
  CHECK_FALSE(f.taken);
  CHECK(f.query(first, StoreRequests::validate() + test::u8(99)).empty());
  CHECK(f.complaints ==
        std::vector<std::string>{"refused peer, for there are already 1 connections",
                                 "closed the connection of peer: reading a store request with "
                                 "opcode 99: bad message"});
  CHECK(f.clients->connection_count() == 0);
}

TEST_CASE("Store clients: after close() nobody is served", "[store]") {
  Fixture f;
  const UniqueFd peer = f.connect();
  f.clients->close();
  CHECK(f.clients->connection_count() == 0);
  char byte;
  CHECK(::recv(peer.get(), &byte, 1, 0) == 0);
  f.clients->serve();
}

}  // namespace
}  // namespace ddprun::store
