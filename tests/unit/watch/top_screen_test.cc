#include "launcher/watch/top_screen.h"

#include <catch2/catch.hpp>
#include <numeric>

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::DaemonStatus;
using rendezvous::NodeStatus;
using rendezvous::RankStatus;
using rendezvous::RunStatus;

DaemonStatus two_nodes() {
  RunStatus run{.run_id = "job7",
                .state = "running",
                .round = 2,
                .restart_count = 1,
                .max_restarts = 3,
                .nnodes_min = 2,
                .nnodes_max = 2,
                .world_size = 4,
                .waiting_for = "round 2 runs on 2 nodes"};
  LedgerTotals ledger{.places = 4, .wall = 6100s};
  ledger.parts[TimePart::kForward] = 26s;
  ledger.parts[TimePart::kBackward] = 53s;
  ledger.parts[TimePart::kWaiting] = 14s;
  ledger.parts[TimePart::kLost] = 7s;
  run.ledger = ledger;
  run.step = 8634;
  run.steps_per_s = 1.38;
  run.events = {{.at_s = 4702, .is_trouble = true, .text = "node b is lost"},
                {.at_s = 6040, .is_trouble = false, .text = "node c joined"}};
  for (const int base : {0, 2}) {
    NodeStatus node{.id = base == 0 ? "a.1" : "b.1",
                    .host = base == 0 ? "node1" : "node2",
                    .address = "",
                    .phase = "seated"};
    node.group_rank = base / 2;
    node.base_rank = base;
    node.local_world_size = 2;
    for (int local = 0; local < 2; ++local) {
      node.ranks.push_back({.rank = base + local,
                            .local_rank = local,
                            .at = "forward",
                            .steps = 8634,
                            .steps_per_s = 1.38,
                            .late_ms = base + local == 3 ? 86.4 : 0.2});
    }
    run.nodes.push_back(node);
  }
  return {{run}};
}

std::string joined(const std::vector<std::string>& lines) {
  return std::accumulate(
      lines.begin(), lines.end(), std::string(),
      [](std::string all, const std::string& line) { return all + line + "\n"; });
}

TEST_CASE("Top: the phase of a late rank is shown where it is known", "[top]") {
  TopView view{.style = {.columns = 120, .colours = false, .utf8 = false}};
  DaemonStatus status = two_nodes();
  status.runs[0].late = {{.rank = 1, .late_ms = 2, .phase = "data"},
                         {.rank = 3, .late_ms = 86.4, .phase = "forward"}};
  CHECK_THAT(joined(top_screen(status, view)),
             Catch::Matchers::Contains("late: rank 3, 86.4 ms a step, in forward\n"));
  view.style.columns = 64;  // Whole fields or none.
  CHECK_THAT(joined(top_screen(status, view)), Catch::Matchers::Contains("86.4 ms a step\n"));
  view.style.columns = 120;
  status.runs[0].late->pop_back();
  CHECK_THAT(joined(top_screen(status, view)), Catch::Matchers::Contains("86.4 ms a step\n"));
}

TEST_CASE("Top: once, all is shown, with who is late", "[top]") {
  TopView view{.style = {.columns = 80, .colours = false, .utf8 = false}};
  CHECK(joined(top_screen(two_nodes(), view)) ==
        R"( job7  * running  4 ranks on 2 nodes  round 2  restart 1 of 3  1:41:40
 step 8,634  1.38 steps/s  late: rank 3, 86.4 ms a step
 goodput 93.0 %  ffffffffffffffffbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbwwwwwwwwwxxxx
 f forward 26.0  b backward 53.0  w waiting 14.0  x lost work 7.0

 NODE             RANKS             STEP  STEPS/S      LATE  NOW
 node1            0-1              8,634     1.38         -  seated
     local 0      0                8,634     1.38         -  forward
     local 1      1                8,634     1.38         -  forward
 node2            2-3              8,634     1.38   86.4 ms  seated
     local 0      2                8,634     1.38         -  forward
     local 1      3                8,634     1.38   86.4 ms  forward

  1:40:40  .  node c joined
  1:18:22  !  node b is lost
)");
}

TEST_CASE("Top: on a terminal it fills the screen, and keys choose and open", "[top]") {
  TopView view{.style = {.columns = 80, .colours = false, .utf8 = true}, .lines = 24};
  view.chosen = 1;
  CHECK(chosen_node(two_nodes(), view) == "b.1");
  view.open_node = "b.1";
  const auto lines = top_screen(two_nodes(), view);
  REQUIRE(lines.size() == 24);
  CHECK(lines[6].starts_with(" node1"));
  CHECK(lines[7].starts_with("▸node2"));
  CHECK(lines[8].find("├ local 0") != std::string::npos);
  CHECK(lines[23].find("q quit") != std::string::npos);
  view.order = TopOrder::kLate;
  CHECK(top_screen(two_nodes(), view)[6].starts_with(" node2"));
  view.chosen = 0;
  CHECK(chosen_node(two_nodes(), view) == "b.1");
}

TEST_CASE("Top: no line is wider and no screen higher than the terminal", "[top]") {
  DaemonStatus status = two_nodes();
  NodeStatus& node = status.runs[0].nodes[0];
  node.host.assign(40, 'h');
  node.host += "\x1b[2J\n";
  node.phase += "\x1b[5m";
  status.runs[0].state += "\x07";
  node.silent = 99'999'999ms;
  node.ranks.resize(4096, {.rank = 4095, .local_rank = 7, .at = "checkpoint", .steps = 123456789});
  NodeStatus other = node;
  other.ranks.resize(1);
  status.runs[0].nodes.resize(300, other);
  status.runs[0].ledger->wall = 30 * 24h;
  status.runs[0].run_id = "\x1b]0;x\x07" + std::string(200, 'r');
  for (const int columns : {20, 59, 80, 120, 200}) {
    for (const int rows : {3, 8, 12, 24, 60}) {
      TopView view{.style = {.columns = columns, .colours = false, .utf8 = true}, .lines = rows};
      view.open_node = "a.1";
      const auto lines = top_screen(status, view);
      CHECK(std::ssize(lines) == rows);
      for (const std::string& line : lines) {
        CHECK(std::ssize(line) >= 0);
        CHECK(text_columns(line) <= static_cast<std::size_t>(columns));
        CHECK(line.find_first_of("\x1b\x07\n") == std::string::npos);
      }
    }
  }
}

TEST_CASE("Top: what is left is shown where the program has told it, at the present rate",
          "[top]") {
  DaemonStatus status = two_nodes();
  status.runs[0].steps_left = 1366;
  TopView view{.style = {.columns = 80, .colours = false, .utf8 = false}};
  CHECK(top_screen(status, view)[1] ==
        " step 8,634 of 10,000  1.38 steps/s  0:16:29 left  late: rank 3, 86.4 ms a step");
  view.style.columns = 72;
  CHECK(top_screen(status, view)[1] ==
        " step 8,634 of 10,000  0:16:29 left  late: rank 3, 86.4 ms a step");
  view.style.columns = 80;
  CHECK(rendezvous::seconds_left(status.runs[0]).value() == Approx(1366 / 1.38));
  status.runs[0].steps_per_s = 1e-9;
  CHECK(text_columns(top_screen(status, view)[1]) <= 80);
  status.runs[0].steps_per_s = 0;
  CHECK(top_screen(status, view)[1].find("left") == std::string::npos);
}

TEST_CASE("Top: processors and memory have columns where there is room, and are known", "[top]") {
  DaemonStatus status = two_nodes();
  TopView view{.style = {.columns = 120, .colours = false, .utf8 = false}};
  CHECK(joined(top_screen(status, view)).find("CPU") == std::string::npos);
  for (NodeStatus& node : status.runs[0].nodes) {
    for (RankStatus& rank : node.ranks) rank.cpu = 0.984, rank.resident = 1'240'000'000;
  }
  const auto lines = top_screen(status, view);
  CHECK(lines[5] ==
        " NODE             RANKS             STEP  STEPS/S      LATE     CPU    MEMORY  NOW");
  CHECK(lines[6] ==
        " node1            0-1              8,634     1.38         -   197 %   2.48 GB  seated");
  CHECK(lines[7] ==
        "     local 0      0                8,634     1.38         -    98 %   1.24 GB  forward");
  view.style.columns = 90;
  CHECK(top_screen(status, view)[5].ends_with("LATE     CPU  NOW"));
  view.style.columns = 80;
  CHECK(top_screen(status, view)[5].ends_with("LATE  NOW"));
}

TEST_CASE("Top: shards of an elastic job have a column where there is room", "[top]") {
  DaemonStatus status = two_nodes();
  TopView view{.style = {.columns = 120, .colours = false, .utf8 = false}};
  std::uint64_t shards = 5;
  for (RankStatus& rank : status.runs[0].nodes[0].ranks) rank.shards = shards++;
  const auto lines = top_screen(status, view);
  CHECK(lines[5] == " NODE             RANKS             STEP  STEPS/S      LATE  SHARDS  NOW");
  CHECK(lines[6] == " node1            0-1              8,634     1.38         -      11  seated");
  CHECK(lines[7] == "     local 0      0                8,634     1.38         -       5  forward");
  view.style.columns = 109;
  CHECK(top_screen(status, view)[5].ends_with("LATE  NOW"));
}

TEST_CASE("Top: the legend of the time has no halves, and loses the smallest parts", "[top]") {
  TopView view{.style = {.columns = 40, .colours = false, .utf8 = true}};
  CHECK(top_screen(two_nodes(), view)[3] == " ▓ forward 26.0  █ backward 53.0");
  CHECK(top_screen(two_nodes(), view)[4] == " · waiting 14.0  ╱ lost work 7.0");
  view.lines = 12;
  CHECK(top_screen(two_nodes(), view)[3] == " ▓ forward 26.0  █ backward 53.0");
  CHECK(top_screen(two_nodes(), view)[4].empty());
}

TEST_CASE("Top: on a low screen nodes come before events", "[top]") {
  TopView view{.style = {.columns = 40, .colours = false, .utf8 = false}, .lines = 12};
  const std::string text = joined(top_screen(two_nodes(), view));
  CHECK_THAT(text, Catch::Matchers::Contains("node1") && Catch::Matchers::Contains("node2") &&
                       !Catch::Matchers::Contains("more"));
}

TEST_CASE("Top: a sentence in place of steps is wrapped, not cut", "[top]") {
  DaemonStatus status;
  status.runs = {{.run_id = "stood", .state = "no answer"}};
  status.runs[0].waiting_for = "run stood is in progress, but its agent does not answer";
  TopView view{.style = {.columns = 40, .colours = false, .utf8 = false}};
  CHECK(joined(top_screen(status, view)) ==
        " stood  * no answer\n run stood is in progress, but its agent\n does not answer\n");
}

TEST_CASE("Top: its help takes the place of nodes and events, and fits", "[top]") {
  for (const int columns : {20, 80, 200}) {
    for (const int rows : {3, 12, 24}) {
      TopView view{.style = {.columns = columns, .colours = false, .utf8 = true}, .lines = rows};
      view.help = true;
      const auto lines = top_screen(two_nodes(), view);
      CHECK(std::ssize(lines) == rows);
      for (const std::string& line : lines) {
        CHECK(text_columns(line) <= static_cast<std::size_t>(columns));
      }
    }
  }
  TopView view{.style = {.columns = 80, .colours = false, .utf8 = false}, .lines = 24};
  view.help = true;
  const std::string text = joined(top_screen(two_nodes(), view));
  CHECK(text.find(" o             late nodes first") != std::string::npos);
  CHECK(text.find("node1") == std::string::npos);
  CHECK(text.find("? help") != std::string::npos);
}

TEST_CASE("Top: without steps it says what is waited for; without runs that there are none",
          "[top]") {
  DaemonStatus status = two_nodes();
  status.runs[0].step.reset();
  status.runs[0].ledger.reset();
  TopView view{.style = {.columns = 80, .colours = false, .utf8 = false}};
  CHECK(top_screen(status, view)[0].starts_with(" job7  * running  4 ranks on 2 nodes"));
  CHECK(top_screen(status, view)[1] == " round 2 runs on 2 nodes");
  CHECK(top_screen(status, view)[2].empty());
  CHECK(joined(top_screen({}, view)) == " no runs\n");
  CHECK(chosen_node({}, view).empty());
}

TEST_CASE("Top: colours are the terminal's own, and only where they are wanted", "[top]") {
  TopView view{.style = {.columns = 80, .colours = true, .utf8 = true}};
  const std::string text = joined(top_screen(two_nodes(), view));
  CHECK(text.find("\x1b[94m▓") != std::string::npos);
  CHECK(text.find("\x1b[32m● running\x1b[0m") != std::string::npos);
}

TEST_CASE("Screen text: a bar is as long as it is to be, whatever the shares", "[top]") {
  for (const int lost : {0, 1, 333, 999, 1000}) {
    LedgerTotals ledger{.places = 1, .wall = 1s};
    ledger.parts[TimePart::kForward] = std::chrono::microseconds(1000 - lost);
    ledger.parts[TimePart::kLost] = std::chrono::microseconds(lost);
    for (const std::size_t width : {1, 7, 64}) {
      ScreenStyle style{.columns = 0, .colours = false, .utf8 = true};
      ScreenLine line(style);
      add_time_bar(line, ledger, width, style);
      CHECK(line.width() == width);
    }
  }
}

}  // namespace
}  // namespace ddprun::launcher
