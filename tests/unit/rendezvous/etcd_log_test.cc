// The journal in etcd, over sockets, before a small etcd in this process.

#include "rendezvous/etcd/etcd_log.h"

#include <catch2/catch.hpp>

#include "tests/fakes/fake_etcd.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using tests::FakeEtcd;

std::string record(int n, std::size_t size = 1) {
  return encode_record(
      Record{"job", TimePoint(std::chrono::seconds(n)), {"", Cancel{n, std::string(size, 'x')}}});
}

std::vector<int> numbers(const Journal& journal) {
  std::vector<int> found;
  for (const JournalEntry& entry : journal.entries) {
    found.push_back(std::get<Cancel>(std::get<Record>(entry).event.what).signal);
  }
  return found;
}

// A daemon that campaigns at once.
struct Daemon {
  boost::asio::io_context& io;
  EtcdLog log;
  std::optional<Journal> journal;
  std::string over;
  std::vector<int> durable;

  Daemon(boost::asio::io_context& loop, const FakeEtcd& etcd)
      : io(loop), log(loop, {.endpoints = {etcd.endpoint()}, .name = "test"}) {
    log.start({.on_lead = [this](Journal found) { journal = std::move(found); },
               .on_over = [this](const std::string& why) { over = why; }});
  }
  template <class Done>
  void until(Done done) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
    REQUIRE(done());
  }
  void lead() {
    until([this] { return journal.has_value(); });
  }
  void append(int n, std::size_t size = 1) {
    log.append(record(n, size), [this, n] { durable.push_back(n); });
  }
  void until_durable(std::size_t count) {
    until([this, count] { return durable.size() == count; });
  }
};

// The leader's lease is gone.
void depose(FakeEtcd& etcd) {
  etcd.keys.erase("/ddprun/leader");
  etcd.created.erase("/ddprun/leader");
}

TEST_CASE("EtcdLog: the next leader reads what the one before it wrote", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  Daemon first(io, etcd);
  first.lead();
  CHECK(first.journal->entries.empty());
  CHECK(first.log.wants_snapshot());
  first.append(1);
  first.log.replace(record(1));  // As the Server does: the snapshot has what was appended.
  CHECK_FALSE(first.log.wants_snapshot());
  first.append(2), first.append(3);
  first.until_durable(3);
  CHECK(first.durable == std::vector<int>{1, 2, 3});
  depose(etcd);
  Daemon second(io, etcd);
  second.lead();
  CHECK(numbers(*second.journal) == std::vector<int>{1, 2, 3});

  first.append(4);  // Of a term that is over.
  first.until([&] { return !first.over.empty(); });
  CHECK(first.over == "another daemon has taken over");
  CHECK(first.durable.size() == 3);
  CHECK_FALSE(first.log.may_decide(std::chrono::steady_clock::now()));
}

TEST_CASE("EtcdLog: a snapshot of many writes counts as a whole or not at all", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  Daemon first(io, etcd);
  first.lead();
  first.log.replace(record(1));
  first.append(2);
  first.until_durable(1);
  constexpr std::size_t kLarge = 3'000'000;
  first.log.replace(record(12, kLarge));
  first.append(3, kLarge);
  const std::size_t before = etcd.keys.size();
  first.until([&] { return etcd.keys.size() > before + 3; });  // A part of it is there.
  {
    boost::asio::io_context other_io;
    FakeEtcd copy(other_io);
    copy.keys = etcd.keys;
    depose(copy);
    Daemon second(other_io, copy);
    second.lead();
    CHECK(numbers(*second.journal) == std::vector<int>{1, 2});
  }
  first.until_durable(2);
  CHECK(etcd.largest_request < 1'500'000);
  depose(etcd);
  Daemon second(io, etcd);
  second.lead();
  CHECK(numbers(*second.journal) == std::vector<int>{12, 3});
}

TEST_CASE("EtcdLog: nonsense, refusals and silence delay a write, and it is made once", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  Daemon daemon(io, etcd);
  daemon.lead();
  daemon.log.replace(record(1));
  daemon.append(2);
  daemon.until_durable(1);
  int lost = 0;
  etcd.instead = [&](const std::string& path) -> std::string {
    return path == "/v3/kv/txn" && lost++ < 3 ? R"({"error":"etcdserver: request timed out"})" : "";
  };
  daemon.append(3), daemon.append(4);
  daemon.until_durable(3);
  CHECK(lost > 3);
  CHECK_FALSE(daemon.log.trouble());
  depose(etcd);
  Daemon second(io, etcd);
  second.lead();
  CHECK(numbers(*second.journal) == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("EtcdLog: after a leader has left, another one leads at once", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  Daemon first(io, etcd);
  first.lead();
  first.log.replace(record(1));
  first.append(2);
  first.until_durable(1);
  bool left = false;
  first.log.leave([&] { left = true; });
  first.until([&] { return left; });
  CHECK_FALSE(first.log.may_decide(std::chrono::steady_clock::now()));
  CHECK(first.over.empty());
  Daemon second(io, etcd);
  second.lead();
  CHECK(numbers(*second.journal) == std::vector<int>{1, 2});

  // Without etcd it ends all the same, and the lease by itself.
  etcd.instead = [](auto&) { return R"({"error":"etcdserver: no leader"})"; };
  bool gone = false;
  second.log.leave([&] { gone = true; });
  second.until([&] { return gone; });
}

TEST_CASE("EtcdLog: a manifest of another version is refused", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  etcd.put("/ddprun/manifest", R"({"format":2,"term":1,"first":0})");
  Daemon daemon(io, etcd);
  daemon.until([&] { return !daemon.over.empty(); });
  CHECK(daemon.over.find("another version") != std::string::npos);
}

}  // namespace
}  // namespace ddprun::rendezvous
