#include "common/store/store_machine.h"

#include <catch2/catch.hpp>
#include <map>
#include <utility>

#include "tests/support/bytes.h"
#include "tests/support/store_requests.h"

namespace ddprun::store {
namespace {

using test::bytes;
using test::hex;
using test::i64;
using test::StoreRequests;
using test::text;
using test::u8;

// A store and what each of its connections has been answered so far.
class Bench {
 public:
  explicit Bench(StoreLimits limits = {}) : store(limits) {}

  // Opens a connection that speaks 2.2+ or 1.13.
  void open(int connection, bool new_dialect = true) {
    store.open(connection);
    if (new_dialect) REQUIRE(query(connection, StoreRequests::validate()).empty());
  }

  // What the connection is answered, including what came earlier and was not asked for yet.
  std::string query(int connection, const std::string& request) {
    std::vector<StoreReply> replies;
    const Result<void> fed = store.feed(connection, request, replies);
    failure = fed ? "" : fed.error().context;
    collect(replies);
    return sent(connection);
  }

  std::string sent(int connection) { return std::exchange(answers_[connection], {}); }

  void close(int connection) {
    std::vector<StoreReply> replies;
    store.close(connection, replies);
    collect(replies);
  }

  StoreMachine store;
  std::string failure;  // Of the last ask().

 private:
  void collect(const std::vector<StoreReply>& replies) {
    for (const StoreReply& reply : replies) answers_[reply.connection] += reply.bytes;
  }

  std::map<int, std::string> answers_;
};

struct Exchange {
  const char* request;
  const char* answer;
};

// Recorded from PyTorch 2.6.0 and 2.14.1, which agree.
const std::vector<Exchange> kGolden = {
    {"00 ce f7 85 3c | 0d ca 56 00 00", "ca 56 00 00"},
    {"04 05 00*7 \"init/\" 01 00*7", "01 00*7"},
    {"01 02 00*7 2f 6b 02 00*7 76 31", ""},
    {"06 01 00*7 02 00*7 2f 6b", "00"},
    {"03 02 00*7 2f 6b", "02 00*7 76 31"},
    {"04 02 00*7 2f 6e 05 00*7", "05 00*7"},
    {"04 02 00*7 2f 6e fe ff*7", "03 00*7"},
    {"02 02 00*7 2f 6b 02 00*7 76 31 02 00*7 76 32", "02 00*7 76 32"},
    {"02 06 00*7 \"/miss2\" 01 00*7 65 01 00*7 78", "01 00*7 65"},
    {"05 02 00*7 02 00*7 2f 6b 03 00*7 2f 7a 7a", "01"},
    {"06 01 00*7 05 00*7 2f 6e 6f 70 65", ""},
    {"0c", "01"},
    {"07", "03 00*7"},
    {"08 02 00*7 2f 6b", "01 00*7"},
    {"08 02 00*7 2f 6b", "00*8"},
    {"09 02 00*7 2f 61 02 00*7 31 32", ""},
    {"0b 02 00*7 02 00*7 2f 78 01 00*7 31 02 00*7 2f 79 02 00*7 32 32", ""},
    {"06 02 00*7 02 00*7 2f 78 02 00*7 2f 79", "00"},
    {"0a 02 00*7 02 00*7 2f 78 02 00*7 2f 79", "01 00*7 31 02 00*7 32 32"},
    {"12 02 00*7 2f 62 01 00*7", "00"},
    {"07", "06 00*7"},
};

TEST_CASE("Store: answers 2.2+ clients byte for byte as recorded", "[store]") {
  Bench bench;
  bench.store.open(1);
  for (const Exchange& exchange : kGolden) {
    CAPTURE(exchange.request);
    CHECK(hex(bench.query(1, bytes(exchange.request))) == hex(bytes(exchange.answer)));
    CHECK(bench.failure == "");
  }
}

// The same conversation, cut at each byte in turn, and in pieces of each size: what is answered may
// not depend on it.
TEST_CASE("Store: answers do not depend on how the requests are cut", "[store]") {
  std::string requests, answers;
  for (const Exchange& exchange : kGolden) {
    requests += bytes(exchange.request);
    answers += bytes(exchange.answer);
  }
  for (std::size_t cut = 0; cut <= requests.size(); ++cut) {
    Bench bench;
    bench.store.open(1);
    const std::string first = bench.query(1, requests.substr(0, cut));
    CAPTURE(cut);
    REQUIRE(hex(first + bench.query(1, requests.substr(cut))) == hex(answers));
  }
  for (std::size_t piece = 1; piece <= requests.size(); ++piece) {
    Bench bench;
    bench.store.open(1);
    std::string seen;
    for (std::size_t at = 0; at < requests.size(); at += piece) {
      seen += bench.query(1, requests.substr(at, piece));
    }
    CAPTURE(piece);
    REQUIRE(hex(seen) == hex(answers));
  }
}

// Recorded from PyTorch 1.13.1's own server.
TEST_CASE("Store: answers 1.13 clients byte for byte as recorded", "[store]") {
  Bench bench;
  bench.open(1, false);
  bench.open(2, false);
  const StoreRequests to(false);
  CHECK(bench.query(2, to.watch("/k")) == u8(3));
  CHECK(bench.query(1, to.set("/k", "v1")) == "");
  CHECK(bench.sent(2) == u8(1) + text("/k") + text("") + text("v1"));
  CHECK(bench.query(1, to.set("/k", "v2")) == "");
  CHECK(bench.sent(2) == u8(0) + text("/k") + text("v1") + text("v2"));
  CHECK(bench.query(1, to.compare_set("/k", "v2", "v3")) == text("v3"));
  CHECK(bench.sent(2) == u8(0) + text("/k") + text("v2") + text("v3"));
  CHECK(bench.query(1, to.compare_set("/k", "zz", "v4")) == text("v3"));
  CHECK(bench.sent(2) == "");
  CHECK(bench.query(1, to.compare_set("/m", "zz", "v4")) == text("zz"));
  CHECK(bench.query(1, to.compare_set("/m2", "", "v4")) == text("v4"));
  CHECK(bench.query(1, to.remove("/k")) == i64(1));
  CHECK(bench.sent(2) == u8(2) + text("/k") + text("v3") + text(""));
  CHECK(bench.query(2, to.watch("/n")) == u8(3));
  CHECK(bench.query(1, to.add("/n", 5)) == i64(5));
  CHECK(bench.sent(2) == u8(1) + text("/n") + text("") + text("5"));
  CHECK(bench.query(1, to.add("/n", 5)) == i64(10));
  CHECK(bench.sent(2) == u8(0) + text("/n") + text("5") + text("10"));
  CHECK(bench.query(1, to.wait({"/zz"})) == "");
  CHECK(bench.query(2, to.set("/zz", "")) == "");
  CHECK(bench.sent(1) == u8(0));
  CHECK(bench.query(1, to.wait({})) == u8(0));
  CHECK(bench.query(1, to.check({})) == u8(0));
  CHECK(bench.query(1, to.key_count()) == i64(3));
}

TEST_CASE("Store: both dialects share the keys", "[store]") {
  Bench bench;
  bench.open(1);
  bench.open(2, false);
  bench.query(1, StoreRequests(true).set("/k", "new"));
  CHECK(bench.query(2, StoreRequests(false).get("/k")) == text("new"));
  bench.query(2, StoreRequests(false).set("/k", "old"));
  CHECK(bench.query(1, StoreRequests(true).get("/k")) == text("old"));
}

TEST_CASE("Store: a missing key reads as empty", "[store]") {
  Bench bench;
  bench.open(1);
  CHECK(bench.query(1, StoreRequests().get("/none")) == text(""));
  CHECK(bench.query(1, StoreRequests().multi_get({"/a", "/b"})) == text("") + text(""));
}

TEST_CASE("Store: a wait ends when the last of its keys has come, whoever brings it", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3}) bench.open(connection);
  CHECK(bench.query(1, to.wait({"/a", "/b", "/c", "/d", "/e"})) == "");
  CHECK(bench.query(2, to.wait({"/e"})) == "");
  bench.query(3, to.set("/a", "1"));
  bench.query(3, to.add("/b", 1));
  bench.query(3, to.append("/c", "1"));
  bench.query(3, to.multi_set({{"/d", "1"}}));
  CHECK(bench.sent(1) == "");
  bench.query(3, to.compare_set("/e", "", "1"));
  CHECK(bench.sent(1) == u8(0));
  CHECK(bench.sent(2) == u8(0));
  bench.query(3, to.set("/a", "2"));
  CHECK(bench.sent(1) == "");
}

TEST_CASE("Store: a key deleted while others are waited for still counts", "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  bench.open(2);
  bench.query(1, to.wait({"/a", "/b"}));
  bench.query(2, to.set("/a", "1"));
  bench.query(2, to.remove("/a"));
  bench.query(2, to.set("/b", "1"));
  CHECK(bench.sent(1) == u8(0));
}

TEST_CASE("Store: a cancelled wait is answered once and never ends", "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  bench.open(2);
  bench.query(1, to.wait({"/a", "/a", "/b"}));
  CHECK(bench.query(1, to.cancel_wait()) == u8(1));
  bench.query(2, to.multi_set({{"/a", "1"}, {"/b", "1"}}));
  CHECK(bench.sent(1) == "");
  // Cancelling what has just ended is answered too: the client then reads both.
  CHECK(bench.query(1, to.wait({"/a"})) == u8(0));
  CHECK(bench.query(1, to.cancel_wait()) == u8(1));
}

// PyTorch's own 1.13 server answers such a wait later, into the middle of another conversation.
TEST_CASE("Store: a 1.13 client that gave up waiting is not answered late", "[store]") {
  Bench bench;
  const StoreRequests to(false);
  bench.open(1, false);
  bench.open(2, false);
  bench.query(1, to.wait({"/late"}));
  CHECK(bench.query(1, to.key_count()) == i64(0));
  bench.query(2, to.set("/late", "1"));
  CHECK(bench.sent(1) == "");
}

TEST_CASE("Store: counters are decimal text as strtoll reads it", "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  bench.query(1, to.set("/n", " +12abc"));
  CHECK(bench.query(1, to.add("/n", 5)) == i64(17));
  CHECK(bench.query(1, to.get("/n")) == text("17"));
  CHECK(bench.query(1, to.add("/n", -20)) == i64(-3));
  CHECK(bench.query(1, to.get("/n")) == text("-3"));
}

TEST_CASE("Store: adding to what is no number, or beyond 64 bits, closes that connection",
          "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  bench.query(1, to.set("/n", "abc"));
  CHECK(bench.query(1, to.add("/n", 5)) == "");
  CHECK(bench.failure == "adding to store key '/n', which does not hold a number");
  bench.close(1);
  bench.open(1);
  bench.query(1, to.set("/n", "9223372036854775807"));
  bench.query(1, to.add("/n", 1));
  CHECK(bench.failure == "adding 1 to store key '/n' overflows");
  bench.close(1);
  bench.open(1);
  bench.query(1, to.set("/n", "+-5"));
  bench.query(1, to.add("/n", 1));
  CHECK(bench.failure == "adding to store key '/n', which does not hold a number");
}

TEST_CASE("Store: queues are first in, first out, and count as present", "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  CHECK(bench.query(1, to.queue_pop("/q")) == i64(0));
  CHECK(bench.query(1, to.queue_length("/q")) == i64(0));
  CHECK(bench.query(1, to.check({"/q"})) == u8(1));
  bench.query(1, to.queue_push("/q", "one") + to.queue_push("/q", "two"));
  CHECK(bench.query(1, to.queue_length("/q")) == i64(2));
  CHECK(bench.query(1, to.check({"/q"})) == u8(0));
  CHECK(bench.query(1, to.wait({"/q"})) == u8(0));
  CHECK(bench.query(1, to.key_count()) == i64(0));
  CHECK(bench.query(1, to.queue_pop("/q")) == i64(2) + text("one"));
  CHECK(bench.query(1, to.queue_pop("/q")) == i64(1) + text("two"));
  CHECK(bench.query(1, to.check({"/q"})) == u8(1));
}

TEST_CASE("Store: one queue element wakes the one who has waited longest", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3}) bench.open(connection);
  bench.query(1, to.wait({"/q"}));
  bench.query(2, to.wait({"/q"}));
  bench.query(3, to.queue_push("/q", "x"));
  CHECK(bench.sent(1) == u8(0));
  CHECK(bench.sent(2) == "");
  CHECK(bench.query(1, to.queue_pop("/q")) == i64(1) + text("x"));
  CHECK(bench.sent(2) == "");
  bench.query(3, to.queue_push("/q", "y"));
  CHECK(bench.sent(2) == u8(0));
}

TEST_CASE("Store: a woken waiter that does not take its element lets the next one", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3, 4}) {
    bench.open(connection);
    if (connection < 4) bench.query(connection, to.wait({"/q"}));
  }
  bench.query(4, to.queue_push("/q", "x"));
  CHECK(bench.sent(1) == u8(0));
  bench.close(1);
  CHECK(bench.sent(2) == u8(0));
  CHECK(bench.query(2, to.cancel_wait()) == u8(1));
  CHECK(bench.sent(3) == u8(0));
}

TEST_CASE("Store: a waiter that lacks another key does not keep a queue element", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3}) bench.open(connection);
  bench.query(1, to.wait({"/q", "/k"}));
  bench.query(2, to.wait({"/q"}));
  bench.query(3, to.queue_push("/q", "x"));
  CHECK(bench.sent(2) == u8(0));
  bench.query(3, to.set("/k", "1"));
  CHECK(bench.sent(1) == u8(0));
}

TEST_CASE("Store: lists every key", "[store]") {
  Bench bench;
  const StoreRequests to;
  bench.open(1);
  bench.query(1, to.set("/a", "1") + to.queue_push("/q", "x"));
  CHECK(bench.query(1, to.list_keys()) == i64(1) + text("/a"));
  bench.query(1, to.set("init/", "1"));
  const std::string answer = bench.query(1, to.list_keys());
  CHECK((answer == i64(2) + text("/a") + text("init/") ||
         answer == i64(2) + text("init/") + text("/a")));
}

TEST_CASE("Store: a barrier lets all go when the last has come", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3}) bench.open(connection);
  CHECK(bench.query(1, to.barrier("/b", 3)) == "");
  CHECK(bench.query(2, to.barrier("/b", 3)) == "");
  CHECK(bench.query(3, to.barrier("/b", 3)) == u8(0));
  CHECK(bench.sent(1) == u8(0));
  CHECK(bench.sent(2) == u8(0));
  CHECK(bench.query(1, to.get("/b")) == text("3"));
}

TEST_CASE("Store: who leaves a barrier is not woken, but has been counted", "[store]") {
  Bench bench;
  const StoreRequests to;
  for (const int connection : {1, 2, 3}) bench.open(connection);
  bench.query(1, to.barrier("/b", 3));
  bench.query(2, to.barrier("/b", 3));
  CHECK(bench.query(1, to.cancel_wait()) == u8(1));
  bench.close(2);
  CHECK(bench.query(3, to.barrier("/b", 3)) == u8(0));
  CHECK(bench.sent(1) == "");
  CHECK(bench.sent(2) == "");
}

TEST_CASE("Store: what a connection leaves behind when it closes is only its keys", "[store]") {
  Bench bench;
  const StoreRequests to(false);
  bench.open(1, false);
  bench.open(2, false);
  bench.query(1, to.set("/k", "1") + to.watch("/k") + to.watch("/k") + to.wait({"/z"}));
  bench.close(1);
  bench.sent(1);
  bench.query(2, to.set("/k", "2") + to.set("/z", "1"));
  CHECK(bench.sent(1) == "");
  CHECK(bench.query(2, to.get("/k")) == text("2"));
}

StoreLimits small_limits() {
  StoreLimits limits;
  limits.key_bytes_max = 16;
  limits.value_bytes_max = 1000;
  limits.keys_max = 4;
  limits.store_bytes_max = 3000;
  limits.reply_bytes_max = 2500;
  return limits;
}

TEST_CASE("Store: a limit closes the connection that exceeds it and no other", "[store]") {
  Bench bench(small_limits());
  const StoreRequests to;
  const std::string large(1000, 'x');
  bench.open(1);
  bench.open(2);
  SECTION("keys") {
    for (const char* key : {"/1", "/2", "/3", "/4"}) bench.query(1, to.set(key, "v"));
    CHECK(bench.failure == "");
    bench.query(1, to.set("/4", "w"));
    CHECK(bench.failure == "");
    bench.query(1, to.set("/5", "v"));
    CHECK(bench.failure == "storing more than 4 keys");
  }
  SECTION("queue elements count as keys") {
    for (int i = 0; i < 4; ++i) bench.query(1, to.queue_push("/q", "v"));
    CHECK(bench.failure == "");
    bench.query(1, to.queue_push("/q", "v"));
    CHECK(bench.failure == "storing more than 4 keys");
  }
  SECTION("bytes of the store") {
    bench.query(1, to.set("/1", large) + to.set("/2", large));
    CHECK(bench.failure == "");
    bench.query(1, to.set("/3", large));
    CHECK(bench.failure == "storing more than 3000 bytes");
  }
  SECTION("a value that grows") {
    bench.query(1, to.append("/1", large));
    CHECK(bench.failure == "");
    bench.query(1, to.append("/1", "x"));
    CHECK(bench.failure == "appending to a store value of 1000 bytes");
  }
  SECTION("keys waited for") {
    bench.query(1, to.wait({"/1", "/2", "/3", "/4", "/5"}));
    CHECK(bench.failure == "waiting for more than 4 store keys");
  }
  SECTION("short requests with long answers") {
    bench.query(1, to.set("/1", large));
    bench.query(1, to.get("/1") + to.get("/1"));
    CHECK(bench.failure == "");
    bench.query(1, to.get("/1") + to.get("/1") + to.get("/1"));
    CHECK(bench.failure == "answering store requests with more than 2500 bytes");
  }
  bench.close(1);
  CHECK(bench.query(2, to.cancel_wait()) == u8(1));
  CHECK(bench.failure == "");
}

TEST_CASE("Store: what is deleted, replaced, popped, unwatched or given up makes room", "[store]") {
  Bench bench(small_limits());
  const StoreRequests to;
  const std::string large(1000, 'x');
  bench.open(1);
  const auto must_fit = [&](int connection, const std::string& request) {
    bench.query(connection, request);
    REQUIRE(bench.failure == "");
  };
  for (int i = 0; i < 50; ++i) {
    CAPTURE(i);
    must_fit(1, to.set("/1", large) + to.set("/1", "") + to.append("/1", large) + to.remove("/1"));
    must_fit(1, to.queue_push("/q", large) + to.queue_pop("/q"));
    must_fit(1, to.wait({"/1", "/2", "/3"}) + to.cancel_wait());
    bench.open(2, false);
    must_fit(2, StoreRequests::watch("/w") + StoreRequests(false).wait({"/1", "/2"}));
    bench.close(2);
  }
}

TEST_CASE("Store: waking a waiter costs the same however many wait", "[store]") {
  // 2,000 connections wait for 200 keys each; this takes minutes if a wake-up looks through them.
  Bench bench;
  const StoreRequests to;
  test::Strings keys;
  for (int i = 0; i < 200; ++i) keys.push_back("/" + std::to_string(i));
  for (int connection = 1; connection <= 2000; ++connection) {
    bench.open(connection);
    bench.query(connection, to.wait(keys));
  }
  bench.open(0);
  for (const std::string& key : keys) bench.query(0, to.set(key, "1"));
  for (int connection = 1; connection <= 2000; ++connection) {
    REQUIRE(bench.sent(connection) == u8(0));
  }
}

}  // namespace
}  // namespace ddprun::store
