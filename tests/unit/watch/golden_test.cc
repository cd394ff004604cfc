// Every table and the screen of top at 40 to 200 columns and in a pipe, as they are drawn.
// DDPRUN_REWRITE=1 writes the files anew; they are reviewed in the diff.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>

#include "launcher/ctl/ctl_text.h"
#include "launcher/watch/history_text.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::DaemonStatus, rendezvous::NodeStatus, rendezvous::RunStatus;

constexpr int kWidths[] = {40, 60, 80, 120, 200, 0};
constexpr std::int64_t kPrintedAt = 1'795'435'200;  // 2026-11-23 12:00 UTC.

// `drawn(columns)` at each width, below one another, against tests/unit/watch/golden/NAME.txt.
void check(const std::string& name, const std::function<std::string(int columns)>& drawn) {
  const std::string path = "tests/unit/watch/golden/" + name + ".txt";
  std::string all;
  for (const int columns : kWidths) {
    const std::string text = drawn(columns);
    all += (columns > 0 ? "== " + std::to_string(columns) + " columns" : "== in a pipe") + "\n";
    all += text;
    for (std::size_t at = 0; columns > 0 && at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      CHECK(text_columns(text.substr(at, end - at)) <= static_cast<std::size_t>(columns));
      at = end + 1;
    }
  }
  if (std::getenv("DDPRUN_REWRITE")) std::ofstream(path) << all;
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  INFO("DDPRUN_REWRITE=1 writes " << path << " anew");
  CHECK(all == golden);
}

ScreenStyle style(int columns) { return {.columns = columns, .colours = false, .utf8 = true}; }

RunRecord ended(const std::string& id, std::int64_t before, double took, int code) {
  RunRecord record{.run_id = id, .command = "ddprun train", .host = "node7"};
  record.started = kPrintedAt - before;
  record.max_restarts = 3;
  record.took_s = took;
  record.exit_code = code;
  record.world_size = 16, record.nodes = 2;
  return record;
}

std::vector<PastRun> past() {
  RunRecord well = ended("job12", 13'680, 2467, 0);
  well.verdict = R"({"kind":"success","text":"",
      "ledger":{"parts_s":{"forward":970,"restart":29}}})";
  RunRecord failed = ended("llama-7b-pretrain-2026-11-22-attempt-14", 95'400, 81.7, 1);
  failed.verdict = R"({"kind":"worker_failed","text":"rank 1 on node7 failed first",
      "first_cause":{"rank":1,"host":"node7","last_words":")" +
                   std::string(4000, 'y') + R"("},
      "ledger":{"parts_s":{"forward":60,"lost":40}}})";
  RunRecord stopped = ended("job6", 230'000, 182, 130);
  stopped.verdict = R"({"kind":"interrupted","text":""})";
  RunRecord gone = ended("größer", 330'000, 0, 0);
  gone.took_s.reset();
  return {{"4", well}, {"3", failed}, {"2", stopped}, {"1", gone, RunState::kVanished}};
}

DaemonStatus daemon() {
  RunStatus run{.run_id = "job7", .state = "running", .round = 2, .restart_count = 1};
  run.max_restarts = 3;
  run.nnodes_min = 2, run.nnodes_max = 4;
  run.world_size = 4;
  run.waiting_for = "round 2 runs on 2 nodes";
  run.step = 8634, run.steps_per_s = 1.38, run.steps_left = 1366;
  run.events = {{3'000, false, "node c joined"},
                {4'702, true, "node2 (10.0.0.2) is lost: no heartbeat for 5 s; restarting"},
                {6'040, false, "round 2 runs: nodes 2, workers 4, restarts 1"}};
  LedgerTotals ledger{.places = 4, .wall = 6100s};
  ledger.parts[TimePart::kForward] = 26s;
  ledger.parts[TimePart::kBackward] = 47s;
  ledger.parts[TimePart::kWaiting] = 14s;
  ledger.parts[TimePart::kLost] = 7s;
  ledger.parts[TimePart::kStartup] = 6s;
  run.ledger = ledger;
  for (const int base : {0, 2}) {
    NodeStatus node{.id = base == 0 ? "node1.f40004f0eef32a0b" : "node2.0c2f11d09be3a711",
                    .host = base == 0 ? "node1" : "node2.cluster.example",
                    .address = base == 0 ? "10.0.0.1" : "10.0.0.2",
                    .phase = "seated"};
    node.group_rank = base / 2;
    node.base_rank = base;
    node.local_world_size = 2;
    node.silent = 250ms;
    for (int local = 0; local < 2; ++local) {
      node.ranks.push_back({.rank = base + local, .local_rank = local, .at = "forward"});
      auto& rank = node.ranks.back();
      rank.steps = 8634, rank.steps_per_s = 1.38;
      rank.late_ms = base + local == 3 ? 86.4 : 0.2;
      rank.cpu = 0.98, rank.resident = 1'240'000'000;
    }
    run.nodes.push_back(node);
  }
  RunStatus waiting{.run_id = "llama-7b-pretrain-2026-11-22-attempt-14", .state = "gathering"};
  waiting.nnodes_min = waiting.nnodes_max = 2;
  waiting.waiting_for = "waiting for nodes: 1 of 2 here (node5); it is given up in 540 s";
  NodeStatus alone{.id = "node5.11aa", .host = "node5", .address = "10.0.0.5", .phase = "ready"};
  waiting.nodes = {alone};
  RunStatus over{.run_id = "job3",
                 .state = "ended",
                 .waiting_for =
                     "it has ended: rank 3 (local "
                     "rank 1, pid 4711) on node2 failed first: exited with 1\nIts last words:\nx"};
  return {{run, waiting, over}};
}

DaemonStatus mute() {
  RunStatus run{.run_id = "stood", .state = "no answer"};
  run.waiting_for =
      "run stood is in progress (launcher 4711), but its agent (4712, stopped by a signal) does "
      "not answer";
  return {{run}};
}

std::string screen(const DaemonStatus& status, int columns, int lines) {
  std::string text;
  for (std::string line : top_screen(status, {.style = style(columns), .lines = lines})) {
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

TEST_CASE("Golden: history", "[golden]") {
  check("history",
        [](int columns) { return history_text(past(), {.now = kPrintedAt}, style(columns)); });
}

TEST_CASE("Golden: status and nodes", "[golden]") {
  check("status", [](int columns) { return runs_text(daemon(), style(columns)); });
  check("nodes", [](int columns) { return nodes_text(daemon(), style(columns)); });
}

TEST_CASE("Golden: top on a terminal of 24 and of 12 lines, once, and without an answer",
          "[golden]") {
  check("top", [](int columns) { return screen(daemon(), columns, columns == 0 ? 0 : 24); });
  check("top_low", [](int columns) { return screen(daemon(), columns, columns == 0 ? 0 : 12); });
  check("top_mute", [](int columns) { return screen(mute(), columns, 0); });
}

}  // namespace
}  // namespace ddprun::launcher
