#include "rendezvous/ledger/run_ledger.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "rendezvous/ledger/account.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr TimePoint kStart{1000s};

// A node of one place that has computed since `rendezvous` after its start.
NodeTimes times(int rank, TimeParts::Time rendezvous, TimeParts::Time forward) {
  PlaceTimes place{.rank = rank, .at = TimePart::kOutside};
  place.parts[TimePart::kRendezvous] = rendezvous;
  place.parts[TimePart::kForward] = forward;
  return {.places = {place}};
}

void adds_up(const RunLedger& ledger, TimePoint now) {
  for (const auto& row : ledger.rows(now)) CHECK(row.times.parts.sum() == ledger.wall(now));
}

TEST_CASE("Run ledger: places of nodes that come later were gone before, and all add up") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  ledger.report("a.1", times(0, 1s, 9s), kStart + 10s);
  ledger.joined("b.1", "b");
  ledger.report("b.1", times(1, 1s, 3s), kStart + 10s);
  adds_up(ledger, kStart + 12s);
  const LedgerTotals totals = ledger.totals(kStart + 12s);
  CHECK(totals.wall == 12s);
  CHECK(totals.parts[TimePart::kGone] == 6s);
  CHECK(totals.parts[TimePart::kOutside] == 4s);  // Until the next report.
  CHECK(totals.goodput() == Approx(16.0 / 18));
}

TEST_CASE("Run ledger: reports that are late or come twice change no sum") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  ledger.report("a.1", times(0, 1s, 4s), kStart + 5s + 300ms);
  ledger.report("a.1", times(0, 1s, 9s), kStart + 10s);
  ledger.report("a.1", times(0, 1s, 9s), kStart + 10s);
  CHECK(ledger.wall(kStart + 10s) == 10s);
  adds_up(ledger, kStart + 11s);
}

TEST_CASE("Run ledger: a lost node loses what was at risk, and is gone from then on") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  NodeTimes node = times(0, 1s, 9s);
  node.places[0].at_risk = 6s;
  ledger.report("a.1", node, kStart + 10s);
  ledger.lost("a.1", kStart + 12s);
  ledger.report("a.1", node, kStart + 13s);  // Of a node that is out of the run.
  const TimeParts parts = ledger.totals(kStart + 20s).parts;
  CHECK(parts[TimePart::kLost] == 8s);
  CHECK(parts[TimePart::kForward] == 3s);
  CHECK(parts[TimePart::kGone] == 8s);
  adds_up(ledger, kStart + 20s);
  ledger.joined("a.1", "a");  // It was only cut off, and knows better.
  ledger.report("a.1", times(0, 1s, 19s), kStart + 20s);
  CHECK(ledger.totals(kStart + 20s).parts[TimePart::kGone] == 0s);
}

TEST_CASE("Run ledger: it knows how fast a run is lately, and of nodes that live only") {
  RunLedger ledger;
  CHECK_FALSE(ledger.progress().has_value());
  ledger.joined("a.1", "a");
  const auto report = [&](std::uint64_t steps, TimePoint now) {
    NodeTimes node = times(0, 1s, now - kStart > 1s ? 1s : 0s);
    node.places[0].steps = steps;
    ledger.report("a.1", node, now);
  };
  report(0, kStart + 1s);
  CHECK_FALSE(ledger.progress().has_value());
  report(100, kStart + 6s);
  CHECK(ledger.progress()->steps_per_s == Approx(20));
  report(101, kStart + 6s + 100ms);  // Over less than two seconds it would jump.
  CHECK(ledger.progress()->steps_per_s == Approx(20));
  CHECK(ledger.progress()->step == 101);
  report(130, kStart + 11s);
  CHECK(ledger.progress()->steps_per_s == Approx(6));
  report(130, kStart + 16s);
  CHECK(ledger.progress()->steps_per_s == 0);
  ledger.lost("a.1", kStart + 17s);
  CHECK_FALSE(ledger.progress().has_value());
}

TEST_CASE("Run ledger: who is late, the worst first, of nodes that live, while the run goes on") {
  RunLedger ledger;
  ledger.joined("a.1", "a"), ledger.joined("b.1", "b");
  const auto report = [&](std::uint64_t steps, Milliseconds a, Milliseconds b, TimePoint now) {
    NodeTimes first = times(0, 1s, 1s), second = times(1, 1s, 1s);
    first.places[0].steps = second.places[0].steps = steps;
    first.places[0].late = a, second.places[0].late = b;
    second.places[0].late_steps = 7;
    ledger.report("a.1", first, now), ledger.report("b.1", second, now);
  };
  report(100, 0ms, 0ms, kStart + 2s);
  CHECK(ledger.late().empty());
  report(200, 500ms, 900ms, kStart + 7s);
  REQUIRE(ledger.late().size() == 2);
  CHECK(ledger.late()[0].rank == 1);
  CHECK(ledger.late()[0].host == "b");
  CHECK(ledger.late()[0].late_ms == Approx(9));
  CHECK(ledger.late()[0].late_s == Approx(0.9));
  CHECK(ledger.late()[0].steps == 7);
  CHECK(ledger.late()[1].late_ms == Approx(5));
  report(300, 580ms, 1900ms, kStart + 12s);  // Less than a millisecond a step is noise.
  REQUIRE(ledger.late().size() == 1);
  ledger.lost("b.1", kStart + 13s);
  CHECK(ledger.late().empty());
  report(400, 1580ms, 0ms, kStart + 17s);
  CHECK(ledger.late().size() == 1);
  ledger.end(kStart + 18s);
  CHECK(ledger.late().empty());
}

TEST_CASE("Run ledger: windows longer than the time between reports neither flicker nor add up") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  TimePoint now = kStart + 2s;
  // One step per second, 100 ms late in each; reported after every 32 of them.
  const auto late_after = [&](std::uint64_t steps, Milliseconds late) {
    NodeTimes node = times(0, 1s, 1s);
    node.places[0].steps = steps, node.places[0].late = late;
    ledger.report("a.1", node, now += 5s);
    const auto all = ledger.late();
    return all.empty() ? 0 : all[0].late_ms;
  };
  std::uint64_t steps = 0;
  CHECK(late_after(steps, 0ms) == 0);
  for (; steps < 35; steps += 5) CHECK(late_after(steps, 0ms) == 0);
  for (; steps < 200; steps += 5) {
    const double late = late_after(steps, Milliseconds(steps / 32 * 3200));
    CAPTURE(steps);
    CHECK(late >= 80);
    CHECK(late <= 110);
  }
  // It keeps up from here: known when two windows have ended without it.
  for (const std::uint64_t end = steps + 70; steps < end; steps += 5) late_after(steps, 19200ms);
  CHECK(late_after(steps, 19200ms) == 0);
  // The next window is of 32 steps, not of the two reports since the last.
  const double again = late_after(steps + 10, 22400ms);
  CHECK(again <= 110);
  CHECK(again >= 50);
}

TEST_CASE("Run ledger: what no node can have computed is not heard") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  NodeTimes nonsense = times(0, kTimeMax, kTimeMax);
  ledger.report("a.1", nonsense, kStart + 1s);
  CHECK(ledger.empty());
  ledger.report("a.1", NodeTimes{.places = std::vector<PlaceTimes>(10'001)}, kStart + 1s);
  CHECK(ledger.empty());
}

TEST_CASE("Run ledger: after the run's end no time passes") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  ledger.report("a.1", times(0, 1s, 9s), kStart + 10s);
  ledger.end(kStart + 11s);
  CHECK(ledger.wall(kStart + 50s) == 11s);
  adds_up(ledger, kStart + 50s);
}

TEST_CASE("Run ledger: of a round the first failure counts, and victims of a lost node do not") {
  RunLedger ledger;
  ledger.happened({.kind = "worker_failed", .fault = "unknown", .node = "a.1", .local_rank = 1});
  ledger.happened({.kind = "worker_failed", .fault = "peer_lost", .node = "b.1", .local_rank = 0});
  ledger.happened({.kind = "worker_failed", .fault = "crash", .node = "a.1", .local_rank = 1});
  REQUIRE(ledger.incidents().size() == 1);
  CHECK(ledger.incidents()[0].fault == "crash");
  ledger.happened({.kind = "worker_failed", .fault = "peer_lost", .node = "b.1", .round = 1});
  ledger.happened({.kind = "node_lost", .fault = "node_lost", .node = "a.1", .round = 1});
  REQUIRE(ledger.incidents().size() == 2);
  CHECK(ledger.incidents()[1].kind == "node_lost");
}

TEST_CASE("Run ledger: a run that loses nodes for ever remembers the newest") {
  RunLedger ledger;
  for (std::size_t i = 0; i < RunLedger::kNodesMax + 10; ++i) {
    const NodeId node = "a." + std::to_string(i);
    ledger.joined(node, "a");
    ledger.report(node, times(0, 1s, 1s), kStart + 2s);
    ledger.lost(node, kStart + 3s);
  }
  CHECK(ledger.rows(kStart + 3s).size() == RunLedger::kNodesMax);
}

TEST_CASE("Ledger on the wire: all of it arrives, and what is no time is refused") {
  NodeTimes sent = times(3, 1s, 9s);
  sent.wants_account = true;
  sent.places[0].at_risk = 2s;
  sent.places[0].steps = 5;
  sent.places[0].late_steps = 2;
  sent.places[0].late = 40ms;
  sent.places[0].spans = "0,0,1";
  sent.places[0].bins = "50000:.";
  sent.places[0].steps_left = 7;
  sent.places[0].ran = 5s;
  sent.places[0].resident = 4096;
  sent.command = "ddprun \"x\"";
  const std::string body = encode(AgentMessage(Heartbeat{.round = 1, .times = sent}));
  CHECK(std::get<Heartbeat>(decode_agent_message(body).value()).times == sent);
  std::string newer = body;
  newer.replace(newer.find("\"at\":2"), 6, "\"at\":99");
  const auto received = std::get<Heartbeat>(decode_agent_message(newer).value()).times;
  CHECK(received->places[0].at == TimePart::kUnknown);
  for (const char* parts : {"\"-5\"", "\"x\"", "7"}) {
    std::string wrong = body;
    const std::size_t begin = wrong.find("\"parts_us\":") + 11;
    wrong.replace(begin, wrong.find(',', wrong.find('"', begin + 1)) - begin, parts);
    CHECK_FALSE(decode_agent_message(wrong).has_value());
  }
  Verdict verdict;
  verdict.ledger = LedgerTotals{
      .places = 2, .wall = 3s, .parts = sent.places[0].parts, .changes = 4, .repeated = 3};
  const auto end = decode_daemon_message(encode(DaemonMessage(EndRun{verdict}))).value();
  CHECK(std::get<EndRun>(end).verdict == verdict);
  const auto piece = decode_daemon_message(encode(DaemonMessage(Account{"{", true}))).value();
  CHECK(std::get<Account>(piece).piece == "{");
  CHECK(std::get<Account>(piece).more);
}

TEST_CASE("Run ledger: processor time is that of the present process, lately") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  NodeTimes node = times(0, 1s, 1s);
  const auto after = [&](Duration since, TimeParts::Time ran, std::uint64_t left) {
    node.places[0].ran = ran, node.places[0].steps = 10, node.places[0].steps_left = left;
    ledger.report("a.1", node, kStart + since);
    return ledger.rows(kStart + since).at(0).cpu;
  };
  CHECK(after(10s, 30s, 90) == 0);  // The beginning is unknown.
  CHECK(after(14s, 36s, 80) == Approx(1.5));
  CHECK(ledger.progress()->steps_left == 80);
  CHECK(after(18s, 1s, 70) == 0);  // Another process.
  CHECK(after(22s, 5s, 0) == Approx(1));
  CHECK(ledger.progress()->steps_left == 0);
}

TEST_CASE("Run ledger: changes that keep workers are counted, and the steps that they repeat") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  ledger.round_began(0, 2, /*kept=*/false, kStart);
  ledger.round_began(1, 1, /*kept=*/true, kStart);
  ledger.round_began(2, 2, /*kept=*/true, kStart);
  NodeTimes node = times(2, 1s, 6s);
  node.places[0].repeated = 2;
  node.places.push_back({.local_rank = 1, .repeated = 1});  // Its process came later.
  ledger.report("a.1", node, kStart + 6s);
  CHECK(ledger.totals(kStart + 6s).changes == 2);
  CHECK(ledger.totals(kStart + 6s).repeated == 2);
}

TEST_CASE("Account: its rows add up, its incidents have costs, and no word of a worker is obeyed") {
  RunLedger ledger;
  ledger.joined("a.1", "</script><b>");
  NodeTimes node = times(3, 1s, 6s);
  node.places[0].parts[TimePart::kLost] = 2s;
  node.places[0].parts[TimePart::kRestart] = 1s;
  node.places[0].spans = "0,0,1000000;9,7000000,9000000;10,9000000,10000000";
  node.places[0].bins = "1000000:.AgAA";
  node.places.push_back({.local_rank = 1, .rank = 4});  // Makes no steps.
  ledger.report("a.1", node, kStart + 10s);
  ledger.happened({.at = kStart + 9s,
                   .kind = "worker_failed",
                   .who = "rank 3",
                   .node = "a.1",
                   .local_rank = 0});
  ledger.end(kStart + 10s);
  Verdict verdict{.kind = Verdict::Kind::kWorkerFailed, .exit_code = 1, .text = "x\x01\xff"};
  verdict.first_cause =
      WorkerDeath{.rank = 3, .detail = "one\ntwo</script>", .fault = Fault::kGpuMemory};
  const std::string text = account_json(ledger, {.run_id = "r", .verdict = verdict}, kStart + 10s);
  const json account = json::parse(text);
  CHECK(account["schema"] == "ddprun.report/1");
  CHECK(account["run"]["wall_s"] == 10.0);
  double sum = 0;
  for (const auto& [part, seconds] : account["slots"][0]["parts_s"].items()) {
    sum += seconds.get<double>();
  }
  CHECK(sum == Approx(10));
  CHECK(account["slots"][0]["bins"][1].get<std::string>().size() == 200);
  CHECK_FALSE(account["slots"][1].contains("bins"));
  CHECK(account["incidents"][0]["lost_s"] == 2.0);
  CHECK(account["incidents"][0]["back_s"] == 1.0);
  CHECK(account["incidents"][0]["cost_rank_s"] == 3.0);
  CHECK(account["incidents"][0]["slots"] == json::array({0}));
  CHECK(account["verdict"]["last_words"] == json::array({"one", "two</script>"}));
  CHECK(account["verdict"]["first_cause"]["what"] == "CUDA out of memory");
  CHECK(account["findings"]["incidents"] == "1 incident cost 30.0 % of all rank time.");
}

// What the report advises about incidents with these faults, all of rank 3, in a run of two ranks.
std::string helped(const std::vector<std::string>& faults, const std::string& last_who = "rank 3",
                   std::optional<Verdict> verdict = std::nullopt, bool kept = false) {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  ledger.round_began(0, 2, false, kStart);
  if (kept) ledger.round_began(1, 2, true, kStart + 1s);
  NodeTimes node = times(3, 1s, 6s);
  node.places[0].parts[TimePart::kLost] = 2s;
  node.places[0].parts[TimePart::kRestart] = 1s;
  node.places[0].spans = "9,3000000,4000000;10,4000000,5000000;9,7000000,8000000";
  ledger.report("a.1", node, kStart + 10s);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    ledger.happened({.at = kStart + std::chrono::seconds(3 + 4 * i),
                     .kind = "worker_failed",
                     .fault = faults[i],
                     .who = i + 1 == faults.size() ? last_who : "rank 3",
                     .node = "a.1",
                     .local_rank = 0,
                     .round = static_cast<int>(i)});
  }
  ledger.end(kStart + 10s);
  const json found = json::parse(account_json(
      ledger, {.run_id = "r", .verdict = std::move(verdict)}, kStart + 10s))["findings"];
  return found["help"].dump() + found["ribbon"].get<std::string>();
}

TEST_CASE("Findings: who fails the same way each time is named, who was killed from outside not") {
  const std::string same = "failed the same way each time";
  CHECK(helped({"exception", "exception"}).find(same) != std::string::npos);
  CHECK(helped({"signal", "signal"}).find(same) == std::string::npos);
  CHECK(helped({"exception", "crash"}).find(same) == std::string::npos);
  CHECK(helped({"exception", "exception"}, "rank 1").find(same) == std::string::npos);
  CHECK(helped({"exception"}).find(same) == std::string::npos);
}

TEST_CASE("Findings: checkpoints are no advice where survivors keep the state") {
  const std::string advice = "each failure undid all work";
  CHECK(helped({"signal", "signal"}).find(advice) != std::string::npos);
  CHECK(helped({"signal", "signal"}, "rank 3", {}, /*kept=*/true).find(advice) ==
        std::string::npos);
}

TEST_CASE("Findings: a run that was stopped has not failed") {
  const Verdict stopped{.kind = Verdict::Kind::kInterrupted, .exit_code = 130};
  const std::string text = helped({}, "", stopped);
  CHECK(text.find("failure undid") == std::string::npos);
  CHECK(text.find("if you stopped it on purpose, nothing is wrong") != std::string::npos);
  CHECK(helped({}).find("if you stopped it") == std::string::npos);
}

TEST_CASE("Findings: without a step goodput is not known, and ranks that take turns are not late") {
  RunLedger ledger;
  ledger.joined("a.1", "a");
  NodeTimes node = times(2, 0s, 10s);
  node.places[0].parts = {};
  node.places[0].parts[TimePart::kStartup] = 8s;
  node.places[0].parts[TimePart::kUnknown] = 2s;
  ledger.report("a.1", node, kStart + 10s);
  ledger.end(kStart + 10s);
  CHECK(ledger.totals(kStart + 10s).has_goodput() == false);
  CHECK(json::parse(account_json(ledger, {.run_id = "r"}, kStart + 10s))["findings"]["ribbon"] ==
        "Goodput not known: no rank reported steps.");
}

}  // namespace
}  // namespace ddprun::rendezvous
