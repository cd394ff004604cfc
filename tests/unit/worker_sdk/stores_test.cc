// All kinds of Store do the same; and what only some can do wrong.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <future>

#include "tests/support/ranks.h"
#include "worker_sdk/store/local_store.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/store/tcp_store.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using worker_sdk::Clock;
using worker_sdk::StoreHost;

// Opens any number of clients of one store.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<Store>()> open;
};

struct Stores {
  test::TemporaryDirectory directory;
  StoreHost host{"127.0.0.1", 0, Clock::now() + 10s};
  worker_sdk::LocalStore local;
  std::unique_ptr<Store> whole = connect_tcp_store("127.0.0.1", host.port(), 10s);

  std::vector<Kind> kinds() {
    return {{"tcp", [this] { return connect_tcp_store("127.0.0.1", host.port(), 10s); }},
            {"file", [this] { return open_file_store(directory / "store"); }},
            {"local", [this] { return with_prefix(local, "p"); }},
            {"prefix", [this] { return with_prefix(*whole, "p"); }}};
  }
};

// The kind of what `call` throws and its text.
template <class Call>
std::string thrown(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code().message() + ": " + error.text();
  }
  return "nothing";
}

TEST_CASE_METHOD(Stores, "Stores: what one client sets, another gets", "[store]") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto a = kind.open(), b = kind.open();
    std::string binary("\0\xff key", 6);
    a->set(binary, std::string(100000, '\0') + "end");
    CHECK(b->get(binary, 1s) == std::string(100000, '\0') + "end");
    a->set("empty", "");
    CHECK(b->get("empty", 1s).empty());
    a->set("empty", "no longer");
    CHECK(b->get("empty", 1s) == "no longer");
    CHECK(b->add("n", 5) == 5);
    CHECK(a->add("n", -7) == -2);
    CHECK(a->get("n", 1s) == "-2");
    CHECK(a->check({"n", "empty"}));
    CHECK_FALSE(a->check({"n", "absent"}));
    CHECK(a->check({}));
    CHECK(a->erase("n"));
    CHECK_FALSE(b->erase("n"));
    CHECK_FALSE(b->check({"n"}));
  }
}

TEST_CASE_METHOD(Stores, "Stores: a wait ends when the last key comes", "[store]") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    if (kind.name == "prefix")
      continue;  // One connection: the waiter would keep the setter waiting.
    const auto waiter = kind.open(), setter = kind.open();
    auto waited = std::async(std::launch::async, [&] {
      waiter->wait({"one", "two"}, 30s);
      return waiter->get("two", 30s);
    });
    setter->set("one", "1");
    setter->set("two", "2");
    CHECK(waited.get() == "2");
  }
}

TEST_CASE_METHOD(Stores,
                 "Stores: a wait that is too long names the key and leaves the store usable",
                 "[store]") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto store = kind.open();
    store->set("there", "x");
    const auto start = Clock::now();
    const std::string get = thrown([&] { (void)store->get("absent", 50ms); });
    const std::string wait = thrown([&] { store->wait({"there", "absent"}, 50ms); });
    CHECK(Clock::now() - start >= 100ms);
    CHECK(get.starts_with("timed out: "));
    CHECK(get.find("absent\"") != std::string::npos);
    CHECK(wait.find("absent\"") != std::string::npos);
    CHECK(store->get("there", 1s) == "x");
  }
}

TEST_CASE_METHOD(Stores, "Stores: the longest time-out there is never ends", "[store]") {
  for (const Kind& kind : kinds()) {
    if (kind.name == "prefix") continue;  // Its clients share one connection, which the wait holds.
    INFO(kind.name);
    const auto a = kind.open(), b = kind.open();
    auto waiting = std::async(std::launch::async, [&] {
      b->wait({"first"}, std::chrono::milliseconds::max());
      return b->get("second", std::chrono::milliseconds::max());
    });
    a->set("first", "1");
    // A server that is far too busy would also pass; one that gave up at once has thrown by now.
    CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
    a->set("second", "2");
    CHECK(waiting.get() == "2");
  }
}

TEST_CASE_METHOD(Stores, "Stores: counters lose no count to concurrency", "[store]") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    std::vector<std::future<void>> adders;
    for (int i = 0; i < 4; ++i) {
      adders.push_back(std::async(std::launch::async, [&] {
        const auto store = kind.open();
        for (int n = 0; n < 100; ++n) store->add("count", 1);
      }));
    }
    for (auto& adder : adders) adder.get();
    CHECK(kind.open()->add("count", 0) == 400);
  }
}

TEST_CASE_METHOD(Stores, "Stores: a prefix separates keys as PyTorch's does", "[store]") {
  const auto inner = with_prefix(*whole, "b");
  const auto outer = with_prefix(*inner, "a");
  outer->set("k", "v");
  CHECK(whole->get("b/a/k", 1s) == "v");
  CHECK_FALSE(whole->check({"k"}));
}

TEST_CASE("TcpStore: a name that nobody knows is an error within seconds", "[store]") {
  const auto start = Clock::now();
  const std::string text = thrown([] { connect_tcp_store("no-such-host.invalid", 1, 60s); });
  CHECK(text.starts_with("unreachable: cannot resolve the host name \"no-such-host.invalid\""));
  CHECK(Clock::now() - start < 30s);
}

TEST_CASE("TcpStore: a port at which nobody listens is tried until the deadline", "[store]") {
  std::uint16_t port = 0;
  {
    StoreHost gone("127.0.0.1", 0, Clock::now() + 10s);
    port = gone.port();
  }
  const auto start = Clock::now();
  const std::string text = thrown([&] { connect_tcp_store("127.0.0.1", port, 200ms); });
  CHECK(text == "unreachable: cannot connect to 127.0.0.1:" + std::to_string(port) +
                    ": Connection refused");
  CHECK(Clock::now() - start >= 200ms);
}

TEST_CASE("TcpStore: a server that comes late is found", "[store]") {
  std::uint16_t port = 0;
  {
    StoreHost gone("127.0.0.1", 0, Clock::now() + 10s);
    port = gone.port();
  }
  auto client = std::async(std::launch::async,
                           [&] { return connect_tcp_store("127.0.0.1", port, 30s)->add("n", 1); });
  StoreHost late("127.0.0.1", port, Clock::now() + 10s);
  CHECK(client.get() == 1);
}

// A server that accepts and then sends `greeting`, or nothing.
class Stranger {
 public:
  explicit Stranger(std::string greeting) : greeting_(std::move(greeting)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      peer_ = UniqueFd(::accept(listener_.get(), nullptr, nullptr));
      ::send(peer_.get(), greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
    });
  }
  ~Stranger() { thread_.join(); }

  std::uint16_t port = 0;

 private:
  std::string greeting_;
  UniqueFd listener_, peer_;
  std::thread thread_;
};

TEST_CASE("TcpStore: what is no store, or says nothing, is found out when connecting", "[store]") {
  for (const char* greeting : {"HTTP/1.1 400 Bad Request\r\n", ""}) {
    Stranger stranger(greeting);
    const std::string text = thrown([&] {
      worker_sdk::connect_tcp_store({.host = "127.0.0.1",
                                     .port = stranger.port,
                                     .connect_timeout = 10s,
                                     .reply_timeout = 100ms});
    });
    const std::string why = *greeting ? "does not speak the TCPStore protocol" : "does not answer";
    CHECK(text.find(why) != std::string::npos);
  }
}

TEST_CASE("TcpStore: a server that goes away is an error, now and later", "[store]") {
  auto host = std::make_unique<StoreHost>("127.0.0.1", 0, Clock::now() + 10s);
  const auto store = connect_tcp_store("127.0.0.1", host->port(), 10s);
  auto waiting = std::async(std::launch::async,
                            [&] { return thrown([&] { (void)store->get("never", 60s); }); });
  host.reset();
  CHECK(waiting.get().starts_with("unreachable: the store at 127.0.0.1:"));
  CHECK(thrown([&] { store->add("n", 1); }).starts_with("unreachable: "));
}

TEST_CASE("TcpStore: what cannot be added up closes the connection, and the error says so",
          "[store]") {
  StoreHost host("127.0.0.1", 0, Clock::now() + 10s);
  const auto store = connect_tcp_store("127.0.0.1", host.port(), 10s);
  const auto other = connect_tcp_store("127.0.0.1", host.port(), 10s);
  store->set("word", "abc");
  const std::string text = thrown([&] { store->add("word", 1); });
  CHECK(text.starts_with("unreachable: "));
  CHECK(text.find("if \"word\" is not a counter") != std::string::npos);
  CHECK(thrown([&] { store->set("word", "1"); }).starts_with("unreachable: "));
  CHECK(other->get("word", 10s) == "abc");
}

TEST_CASE("StoreHost: a port that is in use is named", "[store]") {
  StoreHost first("127.0.0.1", 0, Clock::now() + 10s);
  const std::string text =
      thrown([&] { StoreHost second("127.0.0.1", first.port(), Clock::now() + 10s); });
  CHECK(text == "refused by the system: cannot listen at 127.0.0.1:" +
                    std::to_string(first.port()) + ": Address already in use");
}

TEST_CASE("FileStore: a record cut off by a dead writer is overwritten", "[store]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "store";
  const auto reader = open_file_store(path);
  reader->set("before", "1");
  const auto whole = std::filesystem::file_size(path);
  reader->set("cut", std::string(1000, 'x'));
  for (const std::uintmax_t keep : {whole + 1, whole + 12, whole + 500}) {
    const std::string copy = directory / ("copy" + std::to_string(keep));
    std::filesystem::copy_file(path, copy);
    std::filesystem::resize_file(copy, keep);
    const auto writer = open_file_store(copy);
    CHECK_FALSE(writer->check({"cut"}));
    writer->set("after", "2");
    CHECK(open_file_store(copy)->get("after", 1s) == "2");
    CHECK(open_file_store(copy)->check({"before"}));
  }
}

TEST_CASE("FileStore: another program's file is refused", "[store]") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory / "text") << "a text of some length, but not ours";
  const std::string text = thrown([&] { (void)open_file_store(directory / "text")->check({"k"}); });
  CHECK(text.find("this is not the file of a store") != std::string::npos);
  CHECK(thrown([&] {
          open_file_store(directory / "no/such/folder");
        }).starts_with("refused by the system: "));
}

}  // namespace
}  // namespace ddprun
