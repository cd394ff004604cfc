// The user of a connection. Users are played by the file system's user id of this thread, which is
// what the kernel gives to a socket; only root may change it.
#include "common/system/peer_user.h"

#include <netinet/tcp.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "rendezvous/net/listener.h"
#include "tests/support/raw_client.h"
#include "tests/support/scratch_user.h"

namespace ddprun {
namespace {

using test::AsUser;
using test::RawClient;

constexpr const char* kHead =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n";

UniqueFd accepted(int listening) {
  for (;;) {
    auto socket = rendezvous::accept_socket(listening).value();
    if (socket) return std::move(socket->fd);
  }
}

// A server on `address` and one connection to it.
struct Connection {
  explicit Connection(const std::string& address = "127.0.0.1", const char* to = "127.0.0.1")
      : listening(rendezvous::listen_socket(address, 0).value()),
        client(std::make_unique<RawClient>(rendezvous::local_port(listening.get()), to)),
        server(accepted(listening.get())) {}

  UniqueFd listening;
  std::unique_ptr<RawClient> client;
  UniqueFd server;
};

// By the kernel's answers and by its tables.
void check(const UniqueFd& server, PeerUser expected) {
  CHECK(PeerUsers().look_up(server.get()) == expected);
  CHECK(PeerUsers("/proc/net", false).look_up(server.get()) == expected);
}

TEST_CASE("Peer user: this user's own connections are known as such", "[store]") {
  const Connection plain;
  check(plain.server, PeerUser::kOurs);
  CHECK(PeerUsers().is_quick());
  const Connection mapped("");  // An IPv4 client of a socket for both families.
  check(mapped.server, PeerUser::kOurs);
}

TEST_CASE("Peer user: connections over IPv6 are found", "[store]") {
  const auto listening = rendezvous::listen_socket("::1", 0);
  if (!listening) return test::skip("no IPv6 here");
  const UniqueFd client = rendezvous::client_socket(boost::asio::ip::make_address("::1")).value();
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_addr = in6addr_loopback;
  to.sin6_port = htons(rendezvous::local_port(listening->get()));
  ::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  check(accepted(listening->get()), PeerUser::kOurs);
}

TEST_CASE("Peer user: an IPv6 socket that speaks IPv4 is found", "[store]") {
  const UniqueFd listening = rendezvous::listen_socket("127.0.0.1", 0).value();
  const UniqueFd client(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client) return test::skip("no IPv6 here");
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr);
  to.sin6_port = htons(rendezvous::local_port(listening.get()));
  if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    return test::skip("no IPv6 here");
  }
  check(accepted(listening.get()), PeerUser::kOurs);
}

TEST_CASE("Peer user: another user's connection is told from ours, also where root is", "[store]") {
  if (::geteuid() != 0) return test::skip("needs root");
  const UniqueFd listening = rendezvous::listen_socket("127.0.0.1", 0).value();
  const std::uint16_t port = rendezvous::local_port(listening.get());
  std::optional<RawClient> stranger;
  {
    const AsUser other(test::kSomeUser);
    stranger.emplace(port);
  }
  check(accepted(listening.get()), PeerUser::kOthers);
}

TEST_CASE("Peer user: a connection that its program has closed is nobody's", "[store]") {
  Connection connection;
  REQUIRE(connection.client->send("SET and away"));
  connection.client.reset();
  check(connection.server, PeerUser::kGone);
}

TEST_CASE("Peer user: half closed is not closed", "[store]") {
  const Connection connection;
  ::shutdown(connection.client->fd(), SHUT_WR);
  check(connection.server, PeerUser::kOurs);
}

TEST_CASE("Peer user: who resets a connection leaves no room for another user's", "[store]") {
  Connection connection;
  const linger reset{1, 0};
  ::setsockopt(connection.client->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  connection.client.reset();
  check(connection.server, PeerUser::kGone);
}

TEST_CASE("Peer user: a socket bound to the loopback interface is found", "[store]") {
  const UniqueFd listening = rendezvous::listen_socket("127.0.0.1", 0).value();
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::setsockopt(client.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) != 0) {
    return test::skip("this kernel lets nobody bind to an interface");
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(rendezvous::local_port(listening.get()));
  ::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  check(accepted(listening.get()), PeerUser::kOurs);
}

TEST_CASE("Peer user: what stands in no table is elsewhere, no table at all is unknown",
          "[store]") {
  const Connection connection;
  const auto folder =
      std::filesystem::temp_directory_path() / ("ddprun-peer-user-" + std::to_string(::getpid()));
  CHECK(PeerUsers(folder.string(), false).look_up(connection.server.get()) == PeerUser::kUnknown);
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "tcp") << kHead;
  const std::string path = folder.string();
  CHECK(PeerUsers(path, false).look_up(connection.server.get()) == PeerUser::kElsewhere);
  std::filesystem::remove_all(folder);
}

TEST_CASE("Peer user: only a live connection with a program has a user", "[store]") {
  const auto owner = [](int state, uid_t user, std::uint64_t inode) {
    return peer_user_of({state, user, inode}, 1000);
  };
  CHECK(owner(TCP_ESTABLISHED, 1000, 7) == PeerUser::kOurs);
  CHECK(owner(TCP_CLOSE_WAIT, 0, 7) == PeerUser::kOurs);
  CHECK(owner(TCP_FIN_WAIT2, 1001, 7) == PeerUser::kOthers);
  CHECK(owner(TCP_ESTABLISHED, 0, 0) == PeerUser::kGone);  // Not root's: an orphan.
  CHECK(owner(TCP_SYN_SENT, 1000, 7) == PeerUser::kGone);  // A client that comes after the peer.
  CHECK(owner(TCP_TIME_WAIT, 0, 0) == PeerUser::kGone);
}

TEST_CASE("Peer user: lines of the kernel's table", "[store]") {
  const std::string line =
      "   2: 0100007F:ABF8 0100007F:CE45 01 00000001:00000000 01:00000014 00000000  1000        0 "
      "53619 2 0000000031ff3a2a 20 0 0 10 -1";
  const auto facts = facts_of_line(line, "0100007F:ABF8", "0100007F:CE45");
  REQUIRE(facts);
  CHECK(facts->state == TCP_ESTABLISHED);
  CHECK(facts->user == 1000);
  CHECK(facts->inode == 53619);
  CHECK_FALSE(facts_of_line(line, "0100007F:CE45", "0100007F:ABF8"));
  for (std::size_t cut = 0; cut < line.find("53619"); ++cut) {
    CHECK_FALSE(facts_of_line(line.substr(0, cut), "0100007F:ABF8", "0100007F:CE45"));
  }
  CHECK_FALSE(facts_of_line("", "", ""));
}

}  // namespace
}  // namespace ddprun
