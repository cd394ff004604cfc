// The records of ended runs in etcd, over sockets, before a small etcd in this process.

#include "rendezvous/etcd/etcd_history.h"

#include <catch2/catch.hpp>

#include "tests/fakes/fake_etcd.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using tests::FakeEtcd;
using Names = std::vector<std::string>;

constexpr const char* kLeader = "/ddprun/leader";

RunRecord record(const std::string& run_id, std::size_t account_bytes = 10) {
  RunRecord record{.run_id = run_id, .command = "ddprun train"};
  record.took_s = 12;
  record.verdict = R"({"kind":"success"})";
  record.account = R"({"fill":")" + std::string(account_bytes, 'x') + "\"}";
  return record;
}

struct Daemon {
  boost::asio::io_context& io;
  EtcdHistory history;
  Names known;

  Daemon(boost::asio::io_context& loop, const FakeEtcd& etcd, EtcdHistory::Limits limits = {})
      : io(loop),
        history(loop, {.endpoints = {etcd.endpoint()}, .name = "test"},
                {kLeader, etcd.created.at(kLeader)}, limits) {
    history.start([this](const RunRecord& one) { known.push_back(one.run_id); });
  }
  template <class Done>
  void until(Done done) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
    REQUIRE(done());
  }
  void leave() {
    bool left = false;
    history.leave([&left] { left = true; });
    until([&left] { return left; });
  }
};

// Another daemon leads from now on.
void elect(FakeEtcd& etcd) {
  etcd.keys.erase(kLeader), etcd.created.erase(kLeader);
  etcd.put(kLeader, "somebody");
}

Names stored(const FakeEtcd& etcd) {
  Names names;
  for (const auto& [key, value] : etcd.keys) {
    if (key.starts_with("/ddprun/history/")) names.push_back(decode_record(value).value().run_id);
  }
  return names;
}

TEST_CASE("EtcdHistory: the next leader remembers what ended under the ones before", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  {
    Daemon first(io, etcd);
    for (int i = 0; i < 20; ++i) first.history.put(record("job" + std::to_string(i)));
    first.leave();  // Not before all is written.
    CHECK(first.known.size() == 20);
  }
  REQUIRE(stored(etcd).size() == 20);
  elect(etcd);
  {
    Daemon second(io, etcd);
    second.history.put(record("new"));  // Before the old ones are read.
    second.leave();
    CHECK(second.known.size() == 21);
    CHECK(second.known.front() == "job0");
    CHECK(second.known[19] == "job19");
    CHECK(second.known.back() == "new");
  }
  elect(etcd);
  Daemon third(io, etcd);
  third.until([&] { return third.known.size() == 21; });
  CHECK(third.known.back() == "new");
}

TEST_CASE("EtcdHistory: the oldest go, by number and by bytes, also those of others", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  etcd.put("/ddprun/history0", "not ours"), etcd.put("/ddprun/data/0/0", "not ours either");
  {
    Daemon first(io, etcd, {.records = 3});
    for (const char* id : {"a", "b", "c", "d"}) first.history.put(record(id));
    first.leave();
  }
  CHECK(stored(etcd) == Names{"b", "c", "d"});
  elect(etcd);
  // Room for two small ones beside this.
  const std::size_t small = encode_within(record("c"), 1'000'000).size();
  const std::size_t large = encode_within(record("e", 1'000), 1'000'000).size();
  Daemon second(io, etcd, {.records = 100, .bytes = 2 * small + large});
  second.history.put(record("e", 1'000));
  second.leave();
  CHECK(stored(etcd) == Names{"c", "d", "e"});
  second.history.put(record("f", 1'000 + 2 * small));
  second.leave();
  CHECK(stored(etcd) == Names{"f"});
  CHECK(second.known == Names{"b", "c", "d", "e", "f"});
  CHECK(etcd.keys.contains("/ddprun/history0"));
  CHECK(etcd.keys.contains("/ddprun/data/0/0"));
}

TEST_CASE("EtcdHistory: no request is larger than etcd takes, whatever a run leaves", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  constexpr std::size_t kEtcdTakes = std::size_t{3} << 19, kBase64 = 4, kOf = 3, kRest = 10'000;
  CHECK(EtcdHistory::Limits().record_bytes * kBase64 / kOf + kRest < kEtcdTakes);
  Daemon daemon(io, etcd, {.record_bytes = 60'000});  // The rest takes seconds with a sanitizer.
  daemon.history.put(record("large", 50'000));
  daemon.history.put(record("huge", 500'000));  // Its account goes.
  daemon.leave();
  CHECK(stored(etcd) == Names{"large", "huge"});
  CHECK(etcd.largest_request < 60'000 * kBase64 / kOf + kRest);
  CHECK(etcd.largest_request > 50'000);
}

TEST_CASE("EtcdHistory: what is no record is passed over, and goes in its turn", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  etcd.put("/ddprun/history/0000000000000000/0000000000000000", "{");
  Daemon daemon(io, etcd, {.records = 1});
  daemon.history.put(record("a"));
  daemon.leave();
  CHECK(daemon.known == Names{"a"});
  CHECK(stored(etcd) == Names{"a"});
}

TEST_CASE("EtcdHistory: who leads no more writes nothing", "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  Daemon first(io, etcd);
  first.history.put(record("a"));
  first.until([&] { return stored(etcd).size() == 1; });
  etcd.put("/ddprun/other", "x");
  etcd.created[kLeader] += 100;  // Another's.
  first.history.put(record("b")), first.history.put(record("c"));
  first.leave();
  CHECK(stored(etcd) == Names{"a"});
  CHECK(first.known == Names{"a", "b", "c"});
}

TEST_CASE("EtcdHistory: a write that is refused is made again, once; in the end it is given up",
          "[etcd]") {
  boost::asio::io_context io;
  FakeEtcd etcd(io);
  elect(etcd);
  Daemon daemon(io, etcd);
  int refused = 0, most = 2;
  etcd.instead = [&](const std::string& path) -> std::string {
    const bool refuses = path == "/v3/kv/txn" && refused < most && ++refused > 0;
    return refuses ? R"({"error":"etcdserver: mvcc: database space exceeded"})" : "";
  };
  daemon.history.put(record("a"));
  daemon.until([&] { return stored(etcd).size() == 1; });
  CHECK(refused == 2);
  most = 7;  // Five more: "b" is given up, "c" is not.
  daemon.history.put(record("b")), daemon.history.put(record("c"));
  daemon.until([&] { return stored(etcd).size() == 2; });
  CHECK(stored(etcd) == Names{"a", "c"});
  CHECK(daemon.known == Names{"a", "b", "c"});
  most = 1'000;
  daemon.history.put(record("d"));
  daemon.leave();  // Tries no more than once, and ends.
  CHECK(refused < 10);
}

}  // namespace
}  // namespace ddprun::rendezvous
