#include "worker_sdk/worker/agent_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>

#include "worker_sdk/store/store_host.h"
#include "worker_sdk/store/tcp_store.h"

namespace ddprun::worker_sdk {
namespace {

using namespace worker_link;
using namespace std::chrono_literals;
using Catch::Contains;

constexpr auto kPatience = 60s;

// The agent's end.
class Agent {
 public:
  Agent() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    end_ = UniqueFd(ends[0]);
    link = std::make_unique<AgentLink>(UniqueFd(ends[1]));
  }
  void deliver(const AgentMessage& message) { send_bytes(encode(message)); }
  void send_bytes(const std::string& bytes) {
    REQUIRE(::send(end_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0);
  }
  WorkerMessage receive() {
    std::array<char, kMessageBytesMax> bytes{};
    pollfd readable{end_.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, 60'000) == 1);
    const ssize_t got = ::recv(end_.get(), bytes.data(), bytes.size(), 0);
    REQUIRE(got > 0);
    return decode_worker_message({bytes.data(), static_cast<std::size_t>(got)}).value();
  }
  void hang_up() { end_.reset(); }

  std::unique_ptr<AgentLink> link;

 private:
  UniqueFd end_;
};

Seated seated(int round) { return {.round = round, .master_address = "a", .master_port = 1}; }

// What next_seat throws.
Error refusal(AgentLink& link) {
  try {
    link.next_seat(-1);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::bad_argument, {}, "nothing was thrown"};
}

TEST_CASE("Agent link: a fence ends the round and is answered") {
  Agent agent;
  agent.link->set_committed(41);
  agent.deliver(seated(3));
  const HeldSeat seat = agent.link->next_seat(-1);
  CHECK(seat.place == seated(3));
  CHECK_FALSE(seat.fence->is_raised());
  agent.deliver(Fence{.round = 3, .lost_rank = 2, .why = "it died"});
  CHECK(agent.link->await_fence(seat, kPatience));
  CHECK(seat.fence->word()->lost_rank == 2);
  CHECK(seat.fence->word()->why == "it died");
  CHECK(agent.receive() == WorkerMessage(LeftRound{.round = 3, .step = 41}));
  agent.deliver(Fence{.round = 3, .lost_rank = 2, .why = "again"});  // Changes nothing.
  CHECK(agent.receive() == WorkerMessage(LeftRound{.round = 3, .step = 41}));
  CHECK(seat.fence->word()->why == "it died");
}

TEST_CASE("Agent link: a seat in a round that is over is no seat") {
  Agent agent;
  agent.deliver(Fence{.round = 4, .lost_rank = -1, .why = ""});
  agent.deliver(seated(4));
  agent.deliver(seated(6));
  CHECK(agent.link->next_seat(-1).place.round == 6);
  agent.deliver(Fence{.round = 6, .lost_rank = -1, .why = ""});
  agent.deliver(seated(7));
  CHECK(agent.link->next_seat(6).place.round == 7);
  Agent late;
  late.deliver(Fence{.round = 4, .lost_rank = -1, .why = ""});
  late.deliver(seated(4));
  late.hang_up();
  CHECK(refusal(*late.link).kind() == ErrorKind::unreachable);
}

TEST_CASE("Agent link: a seat in a later round ends the earlier one") {
  Agent agent;
  agent.deliver(seated(1));
  const HeldSeat first = agent.link->next_seat(-1);
  agent.deliver(seated(2));
  CHECK(agent.link->next_seat(1).place.round == 2);
  CHECK(first.fence->is_raised());
  agent.deliver(seated(2));  // Again; or late:
  agent.deliver(seated(1));
  agent.deliver(seated(3));
  CHECK(agent.link->next_seat(2).place.round == 3);
}

TEST_CASE("Agent link: a change is wanted of the round that it names") {
  Agent agent;
  agent.deliver(Change{.round = 5, .why = "growth"});
  agent.deliver(seated(5));
  agent.link->next_seat(-1);
  CHECK(agent.link->wants_change(5));
  CHECK_FALSE(agent.link->wants_change(6));
}

TEST_CASE("Agent link: who leaves a round by itself says so") {
  Agent agent;
  agent.deliver(seated(2));
  const HeldSeat seat = agent.link->next_seat(-1);
  agent.link->set_committed(9);
  agent.link->leave(seat, "all leave");
  CHECK(seat.fence->is_raised());
  CHECK(agent.receive() == WorkerMessage(LeftRound{.round = 2, .step = 9}));
}

TEST_CASE("Agent link: a listener is called once, also if it comes late, and never after its end") {
  const auto fence = std::make_shared<RoundFence>();
  int early = 0, late = 0, gone = 0;
  const auto first = fence->listen([&] { ++early; });
  fence->listen([&] { ++gone; });
  fence->raise({});
  fence->raise({});
  const auto second = fence->listen([&] { ++late; });
  CHECK(early == 1);
  CHECK(late == 1);
  CHECK(gone == 0);
}

TEST_CASE("Round fence: whoever waits for a key of the round's store is freed") {
  StoreHost host("127.0.0.1", 0, deadline_after(kPatience));
  const auto fence = std::make_shared<RoundFence>();
  const auto store = connect_tcp_store({.host = "127.0.0.1", .port = host.port(), .fence = fence});
  auto waits = std::async(std::launch::async, [&] {
    try {
      store->get("a key that never comes", 60s);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::mismatch;
  });
  fence->raise({});
  CHECK(waits.get() == ErrorKind::unreachable);
}

TEST_CASE("Agent link: bytes that are no message are named, and end the link") {
  for (const auto& [bytes, complaint] :
       std::vector<std::pair<std::string, std::string>>{{"nonsense", "not a JSON object"},
                                                        {"{}", "field 'type' of a message"},
                                                        {R"({"type":"seated"})", "of 'seated'"},
                                                        {std::string(9000, ' '), "too long"}}) {
    Agent agent;
    agent.send_bytes(bytes);
    const Error error = refusal(*agent.link);
    CHECK(error.kind() == ErrorKind::mismatch);
    CHECK_THAT(error.what(), Contains("the link to the agent") && Contains(complaint));
    CHECK_THROWS_AS(agent.link->require_sound(), Error);
  }
}

TEST_CASE("Agent link: an agent that refuses, or has gone, is the error of the next seat") {
  Agent refusing;
  refusing.deliver(Refused{.why = "version 9"});
  CHECK_THAT(refusal(*refusing.link).what(), Contains("refuses this worker: version 9"));
  Agent gone;
  gone.hang_up();
  CHECK(refusal(*gone.link).kind() == ErrorKind::unreachable);
  CHECK_NOTHROW(gone.link->require_sound());  // What is under way may go on.
  gone.link->send(Ready{});                   // No SIGPIPE.
}

TEST_CASE("Agent link: a variable that names no link is refused") {
  CHECK(AgentLink::open(nullptr) == nullptr);
  CHECK(AgentLink::open("") == nullptr);
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const UniqueFd ends[] = {UniqueFd(pipe[0]), UniqueFd(pipe[1])};
  for (const std::string& text : {std::string("x"), std::string("-1"), std::string("7 "),
                                  std::string("99999"), std::to_string(pipe[0])}) {
    INFO(text);
    CHECK_THROWS_WITH(AgentLink::open(text.c_str()), Contains("is no link to an agent"));
  }
}

TEST_CASE("Agent link: a forked child may end, and the parent goes on") {
  Agent agent;
  const pid_t child = ::fork();
  if (child == 0) {
    agent.link.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  agent.deliver(seated(1));
  CHECK(agent.link->next_seat(-1).place.round == 1);
}

}  // namespace
}  // namespace ddprun::worker_sdk
