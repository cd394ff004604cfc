#include "agent/node/worker_links.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/support/loop.h"

namespace ddprun::agent {
namespace {

namespace wl = worker_link;

// One agent's links, the trace of what came, and the ends that workers would have.
struct Stage {
  boost::asio::io_context loop{1};
  WorkerLinks links{loop};
  std::vector<std::string> trace;
  std::map<int, UniqueFd> ends;

  Stage() {
    links.on_ready = [this](int rank, int min_world) {
      const std::string needs = min_world > 0 ? ", needs " + std::to_string(min_world) : "";
      trace.push_back(std::to_string(rank) + " ready" + needs);
    };
    links.on_left = [this](int rank, int round, std::int64_t) {
      trace.push_back(std::to_string(rank) + " left " + std::to_string(round));
    };
    links.on_resumed = [this](int rank, const wl::Resumed& resumed) {
      trace.push_back(std::to_string(rank) + " resumed at " + std::to_string(resumed.step));
    };
    links.on_lost = [this](int rank, const std::string& why) {
      trace.push_back(std::to_string(rank) + " lost" + (why.empty() ? "" : ": ") + why);
    };
  }

  void open(int rank) { ends[rank] = links.open(rank).value(); }
  bool deliver(int rank, std::string_view bytes) {
    return ::send(ends[rank].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  }
  bool deliver(int rank, const wl::WorkerMessage& message) {
    return deliver(rank, wl::encode(message));
  }
  std::optional<wl::AgentMessage> reply(int rank) {
    char bytes[wl::kMessageBytesMax];
    const ssize_t got = ::recv(ends[rank].get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return std::nullopt;
    return wl::decode_agent_message({bytes, static_cast<std::size_t>(got)}).value();
  }
  bool closed(int rank) {
    char byte;
    return ::recv(ends[rank].get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }
  std::vector<std::string> until(std::size_t lines) {
    CHECK(test::run_until(loop, [&] { return trace.size() >= lines; }));
    return std::exchange(trace, {});
  }
};

using Trace = std::vector<std::string>;

wl::Change change_of(int round) { return {.round = round, .why = std::string(1000, 'x')}; }

// How many messages a link holds that is not read.
int messages_that_fit() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd writing(ends[0]), reading(ends[1]);
  const std::string bytes = wl::encode(wl::AgentMessage(change_of(100)));
  int count = 0;
  while (::send(writing.get(), bytes.data(), bytes.size(), 0) > 0) ++count;
  return count;
}

TEST_CASE("WorkerLinks: what a worker said before its end can be read at once", "[worker_links]") {
  Stage stage;
  stage.open(1);
  REQUIRE(stage.deliver(1, wl::Ready{}));
  REQUIRE(stage.deliver(1, wl::Resumed{.round = 3, .step = 40}));
  stage.ends.erase(1);
  stage.links.read_rest(1);
  CHECK(stage.trace == Trace{"1 ready", "1 resumed at 40", "1 lost"});
  stage.links.read_rest(2);  // There is no such link.
}

TEST_CASE("WorkerLinks: what workers say is told with their local rank, in order",
          "[worker_links]") {
  Stage stage;
  stage.open(0);
  stage.open(3);
  REQUIRE(stage.deliver(3, wl::Ready{}));
  CHECK(stage.until(1) == Trace{"3 ready"});
  REQUIRE(stage.deliver(0, wl::Ready{}));
  REQUIRE(stage.deliver(0, wl::LeftRound{.round = 4, .step = 17}));
  REQUIRE(stage.deliver(0, wl::Resumed{.round = 5, .step = 18}));
  CHECK(stage.until(3) == Trace{"0 ready", "0 left 4", "0 resumed at 18"});
}

TEST_CASE("WorkerLinks: what the agent says arrives at that worker only", "[worker_links]") {
  Stage stage;
  stage.open(0);
  stage.open(1);
  const wl::Seated seated{.round = 2, .rank = 5, .world_size = 8, .master_address = "10.0.0.1"};
  stage.links.send(1, seated);
  stage.links.send(1, wl::Fence{.round = 2, .lost_rank = 0, .why = "it is gone"});
  stage.links.send(7, wl::Fence{.round = 2, .lost_rank = 0, .why = "nobody has that link"});
  CHECK(stage.reply(1) == wl::AgentMessage(seated));
  CHECK(std::get<wl::Fence>(stage.reply(1).value()).why == "it is gone");
  CHECK_FALSE(stage.reply(0));
}

TEST_CASE("WorkerLinks: both ends are closed in any other program", "[worker_links]") {
  Stage stage;
  stage.open(0);
  CHECK((::fcntl(stage.ends[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("WorkerLinks: who sends no message loses the link, and no other does", "[worker_links]") {
  Stage stage;
  stage.open(0);
  stage.open(1);
  const auto [bytes, why] = GENERATE(table<std::string, std::string>(
      {{"hello", "decoding a message that is not a JSON object"},
       {R"({"type":"left","round":-7,"step":0})", "decoding field 'round' of 'left'"},
       {R"({"type":"seated"})", "decoding a message of unknown kind 'seated'"},
       {std::string(wl::kMessageBytesMax + 1, ' '), "a message of 8193 bytes"},
       {std::string(60'000, '['), "a message of 60000 bytes"}}));
  REQUIRE(stage.deliver(0, bytes));
  CHECK(stage.until(1) == Trace{"0 lost: " + why});
  CHECK(stage.closed(0));
  CHECK_FALSE(stage.deliver(0, wl::Ready{}));
  REQUIRE(stage.deliver(1, wl::Ready{}));
  CHECK(stage.until(1) == Trace{"1 ready"});
}

TEST_CASE("WorkerLinks: a flood ends a link, its neighbour is heard meanwhile", "[worker_links]") {
  Stage stage;
  stage.open(0);
  stage.open(1);
  int sends = 0;
  const auto flood = [&] {
    while (stage.deliver(0, wl::LeftRound{.round = 1, .step = 0})) ++sends;
  };
  flood();
  REQUIRE(stage.deliver(1, wl::Ready{}));
  const bool over = test::run_until(stage.loop, [&] {
    flood();
    return !stage.trace.empty() && stage.trace.back().starts_with("0 lost");
  });
  REQUIRE(over);
  CHECK(stage.trace.back() == "0 lost: more than 256 messages within 10 s");
  CHECK(stage.trace.size() == 256 + 2);
  const auto neighbour = std::find(stage.trace.begin(), stage.trace.end(), "1 ready");
  CHECK(neighbour - stage.trace.begin() < 20);  // Not behind all that was sent before.
}

TEST_CASE("WorkerLinks: a worker that does not read stops nobody, and loses its link",
          "[worker_links]") {
  Stage stage;
  stage.open(0);
  int sent = 0;
  while (stage.trace.empty() && sent < 100'000) {
    stage.links.send(0, change_of(1));
    ++sent;
    stage.loop.poll();
    stage.loop.restart();
  }
  CHECK(stage.trace == Trace{"0 lost: it does not read its link"});
  CHECK(sent > static_cast<int>(WorkerLinks::kUnsentMax));
}

TEST_CASE("WorkerLinks: what a worker did not read for a while arrives later, whole and in order",
          "[worker_links]") {
  Stage stage;
  stage.open(0);
  const int messages = messages_that_fit() + static_cast<int>(WorkerLinks::kUnsentMax) / 2;
  int round = 0, received = 0;
  const auto read_all = [&] {
    while (const auto message = stage.reply(0)) {
      CHECK(std::get<wl::Change>(*message).round == received++);
    }
  };
  for (int turn = 1; turn <= 3; ++turn) {
    while (round < turn * messages) stage.links.send(0, change_of(round++));
    REQUIRE(test::run_until(stage.loop, [&] {
      read_all();
      return received == round;
    }));
  }
  CHECK(stage.trace.empty());
}

TEST_CASE("WorkerLinks: another version is refused with a sentence", "[worker_links]") {
  Stage stage;
  stage.open(0);
  REQUIRE(stage.deliver(0, wl::Ready{.version = 7}));
  const std::string why =
      "the worker speaks version 7 of the worker link, its agent version 1: use ddprun and its SDK "
      "from one release";
  CHECK(stage.until(1) == Trace{"0 lost: " + why});
  CHECK(stage.reply(0) == wl::AgentMessage(wl::Refused{why}));
  CHECK(stage.closed(0));
}

TEST_CASE("WorkerLinks: a worker that closes its end is lost without a reason, once",
          "[worker_links]") {
  Stage stage;
  stage.open(0);
  const bool unread = GENERATE(false, true);
  if (unread) stage.links.send(0, wl::Fence{.round = 1, .lost_rank = 0, .why = ""});
  REQUIRE(stage.deliver(0, wl::Ready{}));
  stage.ends.clear();
  const Trace sends = stage.until(unread ? 1 : 2);
  CHECK(sends.back() == "0 lost");
  stage.links.send(0, wl::Fence{.round = 1, .lost_rank = 0, .why = ""});
  stage.loop.poll();
  CHECK(stage.trace.empty());
}

TEST_CASE("WorkerLinks: a closed link tells nothing more, a new one of that rank does",
          "[worker_links]") {
  Stage stage;
  stage.open(0);
  REQUIRE(stage.deliver(0, wl::Ready{}));
  stage.links.close(0);
  stage.loop.poll();
  CHECK(stage.trace.empty());
  stage.open(0);
  REQUIRE(stage.deliver(0, wl::Ready{}));
  const UniqueFd predecessor = std::move(stage.ends[0]);
  stage.open(0);  // Before it was read.
  REQUIRE(stage.deliver(0, wl::LeftRound{.round = 1, .step = 0}));
  CHECK(stage.until(1) == Trace{"0 left 1"});
}

TEST_CASE("WorkerLinks: without descriptors there is no link, and a sentence", "[worker_links]") {
  Stage stage;
  std::vector<UniqueFd> all;
  for (int fd = 0; (fd = ::fcntl(1, F_DUPFD_CLOEXEC, 0)) >= 0;) all.emplace_back(fd);
  const auto none = stage.links.open(2);
  all.clear();
  REQUIRE(none.has_error());
  CHECK(to_string(none.error()) == "making a link to local rank 2: Too many open files");
}

}  // namespace
}  // namespace ddprun::agent
