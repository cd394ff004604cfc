// What a daemon remembers of runs that have ended.

#include <algorithm>
#include <catch2/catch.hpp>

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Verb = Command::Verb;

RunRecord record(const std::string& run_id, std::size_t account_bytes = 10) {
  RunRecord record{.run_id = run_id, .command = "ddprun train \xff\xc3\xa4"};
  record.took_s = 12;
  record.verdict = R"({"kind":"success","text":"","victims":[{"rank":1}]})";
  record.tails = {{0, "stdout", "ähm\n", 5}};
  record.events = {{1.5, true, "node b is lost"}};
  record.account = R"({"schema":"ddprun.report/1","run":{"id":")" + run_id + R"("},"fill":")" +
                   std::string(account_bytes, 'x') + "\"}";
  return record;
}

bool is_ascii(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

struct Daemon {
  Coordinator coordinator;
  TimePoint now{1h};
  LinkId next = 100;

  void deliver(LinkId link, const AgentMessage& message) {
    (void)coordinator.on_message(link, encode(message), now);
    coordinator.check_invariants();
  }
  // A run of one node that fails after 5 s.
  void run(LinkId link, const std::string& run_id) {
    deliver(link, Hello{kProtocolVersion, run_id, run_id + ".1"});
    NodeOffer offer;
    offer.host = "host-a";
    offer.config.max_restarts = 0;
    deliver(link, Join{offer, -1});
    now += 5s;
    PlaceTimes place{.rank = 0, .at = TimePart::kForward, .steps = 10};
    place.parts[TimePart::kForward] = 4s;
    place.parts[TimePart::kStartup] = 1s;
    deliver(link, Heartbeat{.round = 0, .times = NodeTimes{{place}, false, "ddprun ./trainer"}});
    WorkerDeath death{.rank = 0, .local_rank = 0, .host = "host-a"};
    death.exit_code = 7, death.detail = "loss is NaN";
    deliver(link, Failed{.round = 0, .death = death});
    deliver(link, Stopped{.round = 0, .deaths = {death}});
    (void)coordinator.on_closed(link, now);
  }
  std::string query(const Command& command) {
    std::string text;
    for (const LinkAction& action : coordinator.on_message(next++, encode(command), now)) {
      const auto* send = std::get_if<Send>(&action);
      if (!send) continue;
      const Answer report = decode_answer(send->body).value();
      text += report.error.empty() ? report.text : "no: " + report.error;
    }
    return text;
  }
};

TEST_CASE("Past runs: they are listed with the newest first, in bounds", "[past]") {
  PastRuns past({.runs = 3, .bytes = 100'000});
  CHECK(past.list() == R"({"runs":[]})");
  for (const char* id : {"a", "b", "c", "d"}) past.add(record(id));
  const std::string list = past.list();
  CHECK(is_ascii(list));
  CHECK(list.find(R"("run_id":"d")") < list.find(R"("run_id":"c")"));
  CHECK(list.find(R"("run_id":"a")") == std::string::npos);
  for (const char* absent : {"account", "node b is lost", "victims", "hm\\n"}) {
    CHECK_THAT(list, !Contains(absent));
  }
  past.add(record("big", 200'000));
  CHECK_THAT(past.list(), Contains("big") && !Contains(R"("run_id":"d")"));
  past.add(record("small"));
  CHECK_THAT(past.list(), Contains("small") && !Contains("big"));
}

TEST_CASE("Past runs: one is found by its id, the newest first, or by its number", "[past]") {
  PastRuns past;
  past.add(record("2"));
  past.add(record("job"));
  past.add(record("job", 99));
  const std::string one = past.one("job").value();
  CHECK(is_ascii(one));
  CHECK_THAT(one, Contains("node b is lost") && Contains("victims") && !Contains("account"));
  CHECK(past.one("3").value() == past.one("2").value());
  CHECK_FALSE(past.one("4").has_value());
  CHECK_FALSE(past.one("").has_value());
  CHECK(past.account("job").value().size() > 90);
  CHECK_FALSE(past.account("1").has_value());
}

TEST_CASE("Past runs: the end of a run leaves its record", "[past]") {
  Daemon daemon;
  daemon.coordinator.keep_past();
  daemon.run(1, "job9");
  auto ended = daemon.coordinator.take_ended();
  REQUIRE(ended.size() == 1);
  CHECK(daemon.coordinator.take_ended().empty());
  const RunRecord& left = ended[0].record;
  CHECK(left.run_id == "job9");
  CHECK(left.command == "ddprun ./trainer");
  CHECK(left.host == "host-a");
  CHECK(left.took_s == Approx(5));
  CHECK(left.exit_code == 7);
  CHECK(left.world_size == 1);
  CHECK(left.nodes == 1);
  REQUIRE_FALSE(left.events.empty());
  CHECK_THAT(left.account, Contains("\"worker_failed\"") && Contains("\"slots\""));
  CHECK(ended[0].verdict.kind == Verdict::Kind::kWorkerFailed);
  CHECK(ended[0].verdict.first_cause->detail == "loss is NaN");
  REQUIRE(ended[0].verdict.ledger.has_value());
  CHECK(ended[0].verdict.ledger->places == 1);
}

TEST_CASE("Past runs: a run id that is used again has events of its own", "[past]") {
  Daemon daemon;
  daemon.coordinator.keep_past();
  daemon.run(1, "job9");
  const std::size_t events = daemon.coordinator.take_ended().at(0).record.events.size();
  daemon.now += 10s;
  daemon.run(2, "job9");
  CHECK(daemon.coordinator.take_ended().at(0).record.events.size() == events);
}

TEST_CASE("Past runs: a daemon answers about them, also when it has forgotten the run", "[past]") {
  Daemon daemon;
  CHECK_THAT(daemon.query({.verb = Verb::kHistory}), Contains("no: ") && Contains("--state-dir"));
  daemon.coordinator.keep_past();
  daemon.run(1, "job9");
  for (EndedRun& ended : daemon.coordinator.take_ended()) {
    daemon.coordinator.remember(std::move(ended.record));
  }
  CHECK_THAT(daemon.query({.verb = Verb::kHistory}), Contains("job9"));
  CHECK_THAT(daemon.query({.verb = Verb::kHistory, .run_id = "1"}), Contains("\"events\""));
  CHECK_THAT(daemon.query({.verb = Verb::kHistory, .run_id = "job7"}),
             Contains("no: this daemon has no record of an ended run 'job7'"));
  daemon.now += 2h;
  (void)daemon.coordinator.on_tick(daemon.now);
  CHECK(daemon.coordinator.runs().empty());
  CHECK_THAT(daemon.query({.verb = Verb::kReport, .run_id = "job9"}), Contains("ddprun.report/1"));
  CHECK_THAT(daemon.query({.verb = Verb::kReport, .run_id = "x"}), Contains("no: there is no run"));
}

TEST_CASE("Past runs: where nobody keeps them nothing is made of an end", "[past]") {
  Daemon daemon;
  daemon.run(1, "job9");
  CHECK(daemon.coordinator.take_ended().empty());
}

}  // namespace
}  // namespace ddprun::rendezvous
