// The daemon's I/O: which connections it closes, without agents.

#include "rendezvous/daemon/server.h"

#include <catch2/catch.hpp>

#include "common/frames.h"
#include "tests/support/loop.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using test::RawClient;

std::string frame(const AgentMessage& message) {
  std::string bytes;
  append_frame(bytes, encode(message));
  return bytes;
}

TEST_CASE("Server: a link that never says hello is hung up on, one that did stays", "[link]") {
  boost::asio::io_context io;
  auto server =
      Server::open(io, {.listen = {.address = "127.0.0.1"}, .hello_timeout = 50ms}, {}, [] {});
  REQUIRE(server.has_value());
  RawClient node((*server)->port());
  auto silent = std::make_unique<RawClient>((*server)->port());
  node.send(frame(Hello{.run_id = "job", .node = "a"}));
  silent->send(std::string("\x00\x00", 2));  // As much as makes it a link, and no message.
  CHECK(test::run_until(io, [&] {
    silent->poll();
    return silent->closed;
  }));
  CHECK((*server)->refused().of(Refusal::kNoHello) == 1);
  node.poll();
  CHECK_FALSE(node.closed);
  silent.reset();
  CHECK(test::run_until(io, [&] { return (*server)->listener().link_count() == 1; }));
}

}  // namespace
}  // namespace ddprun::rendezvous
