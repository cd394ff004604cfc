// What Gloo's own pairs would end the process by: each test ends it, too, if pairs are Gloo's.

#include "worker_sdk/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <future>
#include <mutex>
#include <utility>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Device = gloo::transport::tcp::Device;

// Keeps Gloo's thread from everything else.
class HeldLoop : public gloo::transport::tcp::Handler {
 public:
  explicit HeldLoop(Device& device) : device_(device), event_(::eventfd(1, EFD_CLOEXEC)) {
    device_.registerDescriptor(event_.get(), EPOLLIN, this);
    is_held_.get_future().wait();
  }
  ~HeldLoop() override {
    go_on_.set_value();
    device_.unregisterDescriptor(event_.get(), this);
  }
  void handleEvents(int) override {
    std::call_once(once_, [this] {
      is_held_.set_value();
      go_on_.get_future().wait();
    });
  }

 private:
  Device& device_;
  UniqueFd event_;
  std::once_flag once_;
  std::promise<void> is_held_, go_on_;
};

// Rank 0 of two. The other one is this test, by hand.
struct HalfMesh {
  HalfMesh() {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    device = std::static_pointer_cast<Device>(gloo::transport::tcp::CreateDevice(attributes));
    peers = std::make_shared<GlooPeers>(device, 0, 2);
    peers->setTimeout(60s);
    pair = peers->createPair(1).get();
  }

  // Returns once the kernel has made the connection.
  UniqueFd connect_to_it() const {
    const auto bytes = pair->address().bytes();
    const sockaddr_storage address = gloo::transport::tcp::Address(bytes).getSockaddr();
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof(sockaddr_in)) == 0);
    return socket;
  }
  // Of two ranks the one with the lower address is connected to.
  void accept() const {
    sockaddr_storage above{};
    auto& address = reinterpret_cast<sockaddr_in&>(above);
    address.sin_family = AF_INET;
    address.sin_port = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    pair->connect(gloo::transport::tcp::Address(above).bytes());
  }

  std::shared_ptr<Device> device;
  std::shared_ptr<GlooPeers> peers;
  gloo::transport::Pair* pair = nullptr;
};

TEST_CASE("Gloo peers: one that is gone when its connection is accepted is an error of that pair") {
  const HalfMesh mesh;
  {
    const HeldLoop held(*mesh.device);
    const UniqueFd peer = mesh.connect_to_it();
    const linger reset{.l_onoff = 1, .l_linger = 0};
    REQUIRE(::setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
  }
  CHECK_THROWS_WITH(mesh.accept(),
                    Contains("Gloo gave up a connection") && Contains("getpeername"));
}

TEST_CASE("Gloo peers: one that is gone when its connection is adopted is an error of that pair") {
  const HalfMesh mesh;
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // As one that was reset.
  CHECK_THROWS_WITH(static_cast<GlooPair*>(mesh.pair)->adopt(std::move(socket)),
                    Contains("Gloo gave up a connection") && Contains("getpeername"));
}

// The system's headers may lack one that we have in its place.
TEST_CASE("Gloo peers: a pair and its context are as large as those that the library makes") {
  const HalfMesh mesh;
  const auto theirs = mesh.device->createContext(0, 2);
  theirs->setTimeout(60s);
  const auto bytes = [](const void* memory) {
    return ::malloc_usable_size(const_cast<void*>(memory));
  };
  CHECK(bytes(theirs->createPair(1).get()) == bytes(mesh.pair));
  struct Bare : gloo::transport::tcp::Context {  // GlooPeers without what it adds.
    using Context::Context;
  };
  const auto ours = std::make_unique<Bare>(mesh.device, 0, 2);
  CHECK(bytes(theirs.get()) == bytes(ours.get()));
}

TEST_CASE("Gloo peers: a message that nobody waits for ends its connection only") {
  const HalfMesh mesh;
  const UniqueFd peer = mesh.connect_to_it();
  mesh.accept();
  // As of gloo::transport::tcp::Op: bytes in all, SEND_UNBOUND_BUFFER, slot, and so on.
  const std::array<std::size_t, 6> preamble{48 + 8, 1, 7, 0, 8, 0};
  static_assert(sizeof(preamble) == 48);
  REQUIRE(::send(peer.get(), preamble.data(), sizeof(preamble), 0) == 48);
  char nothing = 0;
  CHECK(::recv(peer.get(), &nothing, 1, 0) <= 0);  // Waits for the end.
  const auto buffer = mesh.peers->createUnboundBuffer(&nothing, 1);
  CHECK_THROWS_WITH(buffer->recv(1, 7), Contains("Gloo gave up a connection"));
}

}  // namespace
}  // namespace ddprun::worker_sdk
