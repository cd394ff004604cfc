// How a rank gets streams to other nodes from its agent, against an agent of the tests.

#include "worker_sdk/gloo/gloo_relay.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <thread>

#include "ddprun/error.h"
#include "worker_sdk/base/socket_io.h"
#include "worker_sdk/store/local_store.h"

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;

// Takes one line per connection, and gives the answers in turn.
class FakeAgent {
 public:
  explicit FakeAgent(std::vector<std::string> answers)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener_.get(), any, size) == 0);
    REQUIRE(::listen(listener_.get(), 8) == 0);
    REQUIRE(::getsockname(listener_.get(), any, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answers = std::move(answers)] { serve(answers); });
  }
  ~FakeAgent() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::uint16_t port() const { return port_; }
  std::vector<std::string> lines;  // Complete once the last answer has arrived.

 private:
  void serve(const std::vector<std::string>& answers) {
    for (const std::string& answer : answers) {
      const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      std::string line;
      for (char next = 0; ::recv(client.get(), &next, 1, 0) == 1 && next != '\n';) line += next;
      lines.push_back(line);
      (void)::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

GlooRelay::Options options_of(const FakeAgent& agent, Store* keys = nullptr) {
  Roster roster{.rank = 0, .hosts = {"host-a", "host-b"}};
  return {.place = {.port = agent.port(), .nonce = "n", .node = "a"},
          .roster = std::make_shared<const Roster>(std::move(roster)),
          .networks = {"here", "there"},
          .keys = keys,
          .deadline = Clock::now() + 60s};
}

TEST_CASE("Gloo relay: what may succeed later is dialled again") {
  const FakeAgent agent({"again the daemon has no link with node b\n", "ok\n"});
  CHECK(GlooRelay(options_of(agent)).dial(1, "b", 7000, ""));
  CHECK(agent.lines == std::vector<std::string>(2, "dial n b 7000"));
}

TEST_CASE("Gloo relay: what fails for good, or until the deadline, names rank, host and reason") {
  const auto text = [](const GlooRelay& relay, const std::string& direct) -> std::string {
    try {
      (void)relay.dial(1, "b", 7000, direct);
      return "connected";
    } catch (const Error& error) {
      CHECK(error.where().rank == 0);
      CHECK(error.where().host == "host-a");
      return error.text();
    }
  };
  const FakeAgent refuses({"no node b has an older ddprun\n"});
  CHECK(text(GlooRelay(options_of(refuses)), "Connection timed out") ==
        "rank 1 on host-b cannot be reached (Connection timed out), and there is no stream to it "
        "through the rendezvous daemon: node b has an older ddprun");
  const FakeAgent waits(std::vector<std::string>(100, "again the daemon is not there\n"));
  auto options = options_of(waits);
  options.deadline = Clock::now() + 300ms;
  CHECK(text(GlooRelay(options), "") ==
        "there is no stream to rank 1 on host-b through the rendezvous daemon: the daemon is not "
        "there");
}

TEST_CASE("Gloo relay: a rank with our address in another network is not connected to directly") {
  GlooRelay::Options options{.roster = std::make_shared<const Roster>(
                                 Roster{.rank = 0, .hosts = {"host", "host", "host"}}),
                             .networks = {"here", "there", "here"}};
  CHECK(GlooRelay(options).is_only_way(1, "192.168.1.2", "192.168.1.2"));
  CHECK(!GlooRelay(options).is_only_way(1, "192.168.1.2", "192.168.1.3"));
  CHECK(!GlooRelay(options).is_only_way(2, "192.168.1.2", "192.168.1.2"));
  options.place.always = true;
  CHECK(GlooRelay(options).is_only_way(2, "192.168.1.2", "192.168.1.3"));
}

TEST_CASE("Gloo relay: a rank's node is beside its addresses, and an older rank has none") {
  LocalStore keys;
  const FakeAgent agent({"ok\n"});
  const GlooRelay relay(options_of(agent, &keys));
  CHECK(relay.open("10.0.0.1", {7000, 7001}));
  CHECK(agent.lines.front() == "open n 10.0.0.1 7000,7001");
  CHECK(keys.get("node/0", 1s) == "a");
  CHECK(relay.other_node(1).empty());
  keys.set("node/1", "a");  // On this rank's node.
  CHECK(relay.other_node(1).empty());
  keys.set("node/1", "b");
  CHECK(relay.other_node(1) == "b");
}

}  // namespace
}  // namespace ddprun::worker_sdk
