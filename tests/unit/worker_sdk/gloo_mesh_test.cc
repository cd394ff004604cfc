#include "worker_sdk/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;
using Addresses = std::vector<char>;

// Has the addresses of all but rank 0. Reports rank 0's first query.
class KnownAddresses : public gloo::rendezvous::Store {
 public:
  void set(const std::string& key, const Addresses& value) override { values_[key] = value; }
  Addresses get(const std::string& key) override {
    std::call_once(once_, [this] { queried.set_value(); });
    return values_.at(key);
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  std::promise<void> queried;

 private:
  std::map<std::string, Addresses> values_;
  std::once_flag once_;
};

// Of `rank`, which then stays where it is and connects to no peer.
Addresses addresses_of(gloo::transport::Context& idle, int rank, int size) {
  Addresses all;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto bytes = idle.createPair(peer)->address().bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TEST_CASE("Gloo mesh: who waits for a peer that will never connect is freed by the fence") {
  constexpr int kRanks = 8;  // Some of them listen, and so wait; others connect at once.
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  KnownAddresses store;
  std::vector<std::shared_ptr<gloo::transport::Context>> idle;
  for (int rank = 1; rank < kRanks; ++rank) {
    idle.push_back(device->createContext(rank, kRanks));
    idle.back()->setTimeout(60s);  // Gloo has no default.
    store.set(std::to_string(rank), addresses_of(*idle.back(), rank, kRanks));
  }
  GlooMesh mesh(0, kRanks);
  mesh.setTimeout(60s);
  const auto fence = std::make_shared<RoundFence>();
  auto outcome = std::async(std::launch::async, [&]() -> std::string {
    try {
      mesh.connect(store, device, {}, fence.get(), GlooRelay({}));
      return "connected";
    } catch (const gloo::IoException& error) {
      return error.what();
    }
  });
  store.queried.get_future().wait();
  fence->raise({});
  REQUIRE(outcome.wait_for(60s) == std::future_status::ready);
  const std::string text = outcome.get();
  INFO(text);
  CHECK(text.find("the round is over") != std::string::npos);
}

// A peer that has not accepted a connection in Gloo yet: accepting one that was reset ends it.
TEST_CASE("Gloo mesh: a fence resets no connection that a peer has yet to accept") {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage{};
  auto* address = reinterpret_cast<sockaddr_in*>(&storage);
  socklen_t size = sizeof(*address);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(address), size) == 0);
  REQUIRE(::listen(listener.get(), 8) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(address), &size) == 0);
  const Addresses listening = gloo::transport::tcp::Address(storage).bytes();
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK + 9);  // The higher address connects.
  const Addresses silent = gloo::transport::tcp::Address(storage).bytes();

  KnownAddresses store;
  for (const auto& [rank, bytes] : {std::pair("1", listening), std::pair("2", silent)}) {
    Addresses both = bytes;
    both.insert(both.end(), bytes.begin(), bytes.end());
    store.set(rank, both);
  }
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.2";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  GlooMesh mesh(0, 3);
  mesh.setTimeout(60s);
  const auto fence = std::make_shared<RoundFence>();
  auto outcome = std::async(std::launch::async, [&] {
    CHECK_THROWS(mesh.connect(store, device, {}, fence.get(), GlooRelay({})));
  });
  pollfd pending{listener.get(), POLLIN, 0};
  REQUIRE(::poll(&pending, 1, 60'000) == 1);
  fence->raise({});
  REQUIRE(outcome.wait_for(60s) == std::future_status::ready);
  const UniqueFd accepted(::accept(listener.get(), nullptr, nullptr));
  CHECK(::getpeername(accepted.get(), reinterpret_cast<sockaddr*>(address), &size) == 0);
}

TEST_CASE("Gloo sockets: an error names the rank whose whole address is in it") {
  std::vector<GlooConnection> connections(4);  // Rank 0 is this one.
  connections[1].address = "[127.0.0.1]:1234";
  connections[2].address = "[127.0.0.1]:123";
  connections[3].address = "[127.0.0.1]:12345";
  const auto named = [&](const std::string& port) {
    return rank_named(connections, "Read error [127.0.0.1]:" + port + ": Connection reset by peer");
  };
  CHECK(named("123") == 2);
  CHECK(named("1234") == 1);
  CHECK(named("12345") == 3);
  CHECK(named("12") == -1);
  CHECK(rank_named(connections, "Connection closed by peer [127.0.0.1]:12345") == 3);
  CHECK(rank_named(connections, "Timed out waiting 100ms for recv operation") == -1);
}

}  // namespace
}  // namespace ddprun::worker_sdk
