#include "launcher/run/report_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <numeric>
#include <random>
#include <sstream>

namespace ddprun::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

const std::string kSummary =
    R"({"rank": 3, "world_size": 4, "restart_count": 1, "host": "node7", "steps": 12, )"
    R"("startup_s": 2, "outside_s": 1, "forward_s": 1, "backward_s": 3, "waiting_s": 1, )"
    R"("transfer_s": 0.5, "unknown_s": 0.5, "rest_s": 1, "window_steps": 10, )"
    R"("late": [{"rank": 2, "steps": 8, "late_s": 0.4, "phase": "backward"}]})";

TEST_CASE("Report: a worker's summary is read, part by part") {
  const auto rank = read_summary(kSummary);
  REQUIRE(rank);
  CHECK(rank->rank == 3);
  CHECK(rank->host == "node7");
  CHECK(rank->steps == 12);
  CHECK(rank->wall() == 10);
  CHECK(rank->seconds[3] == 3);
  CHECK(rank->seconds[RankTime::kUnknown] == 0.5);
  CHECK(rank->window_steps == 10);
  REQUIRE(rank->late.size() == 1);
  CHECK(rank->late[0].rank == 2);
}

TEST_CASE("Report: a summary of an older SDK knows all that is waiting and transfer") {
  const auto rank = read_summary(
      R"({"rank": 3, "restart_count": 1, "host": "node7", "steps": 12, "startup_s": 2, )"
      R"("outside_s": 1, "forward_s": 1, "backward_s": 3, "waiting_s": 1, "transfer_s": 1, )"
      R"("rest_s": 1})");
  REQUIRE(rank);
  CHECK(rank->wall() == 10);
  CHECK_THAT(report_table({*rank}), !Contains("unknown:") && !Contains("was last"));
}

TEST_CASE("Report: a late rank with a phase or a time that cannot be is left out") {
  for (const auto& [what, by] : {std::pair("backward", "\\u001b[2J"), std::pair("0.4", "-0.4"),
                                 std::pair("\"steps\": 8", "\"steps\": 0")}) {
    std::string wrong = kSummary;
    wrong.replace(wrong.rfind(what), std::string(what).size(), by);
    const auto rank = read_summary(wrong);
    REQUIRE(rank);
    CHECK(rank->late.empty());
  }
}

TEST_CASE("Report: what is no summary is left out") {
  for (const std::string& text : {std::string("{}"), std::string(""), std::string("[1]"),
                                  kSummary.substr(0, 100), std::string(100'000, ' ') + kSummary}) {
    CHECK_FALSE(read_summary(text));
  }
  std::string wrong = kSummary;
  wrong.replace(wrong.find("\"rest_s\": 1"), 11, "\"rest_s\": 1e300");
  CHECK_FALSE(read_summary(wrong));
}

TEST_CASE("Report: per mille are whole and add up, whatever the parts") {
  CHECK(per_mille({1, 1, 1}) == std::vector<int>{333, 333, 334});
  CHECK(per_mille({0, 0}) == std::vector<int>{0, 0});
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> parts;
    for (int i = 0; i < 7; ++i) parts.push_back(std::uniform_real_distribution<>(0, 5)(random));
    const auto shares = per_mille(parts);
    CHECK(std::accumulate(shares.begin(), shares.end(), 0) == 1000);
    const double whole = std::accumulate(parts.begin(), parts.end(), 0.0);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(std::abs(shares[i] - 1000 * parts[i] / whole) <= 1);
    }
  }
}

TEST_CASE("Report: one row a rank, in their order, each adding up to 100 per cent") {
  auto a = *read_summary(kSummary);
  auto b = a;
  b.rank = 0;
  b.seconds = {1, 1, 1, 1, 1, 1, 1, 1};
  std::istringstream table(report_table({a, b}));
  std::string header, first, second;
  std::getline(table, header);
  std::getline(table, first);
  std::getline(table, second);
  CHECK_THAT(header, Contains("startup") && Contains("transfer"));
  for (const auto& [line, rank] : {std::pair(first, 0), std::pair(second, 3)}) {
    std::istringstream in(line);
    int number = -1;
    double wall = 0, steps = 0, sum = 0;
    in >> number >> wall >> steps;
    for (double share = 0; in >> share;) sum += share;
    CHECK(number == rank);
    CHECK(sum == Approx(100).margin(1e-9));
  }
  CHECK_THAT(second, Contains("10.00") && Contains("30.0") && Contains("node7"));
}

TEST_CASE("Report: data and the optimizer have columns where a rank tells them apart") {
  auto a = *read_summary(kSummary);
  CHECK_THAT(report_table({a}), !Contains("optimizer      rest") && !Contains("data, optimizer:"));
  std::string parted = kSummary;
  parted.replace(parted.find("\"rest_s\""), 0, "\"data_s\": 6, \"optimizer_s\": 4, ");
  parted.replace(parted.find("\"backward\""), 10, "\"data\"");
  const auto b = read_summary(parted);
  REQUIRE(b);
  CHECK(b->wall() == 20);
  const std::string table = report_table({*b});
  CHECK_THAT(table, Contains(" optimizer      rest   per cent") && Contains(" 30.0      20.0 "));
  CHECK_THAT(table, Contains("data, optimizer: what of outside") && Contains("each, in data\n"));
}

TEST_CASE("Report: who was late is told by how often and how much") {
  auto a = *read_summary(kSummary);
  auto b = a;  // It ended early, and knows of fewer steps.
  b.rank = 0;
  b.window_steps = 5;
  b.late = {{.rank = 1, .steps = 5, .seconds = 1, .phase = "outside"}};
  const std::string table = report_table({b, a});
  CHECK_THAT(table, Contains("\nrank 2 was last in 8 of 10 steps, 50.0 ms each, in backward\n") &&
                        !Contains("rank 1 was last"));
  CHECK_THAT(table, Contains("unknown: "));
}

TEST_CASE("Report: without summaries it says who would leave one") {
  CHECK_THAT(report_table({}), Contains("DistributedDataParallel"));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::size_t widest(const std::string& text) {
  std::size_t width = 0;
  for (const std::string& line : lines_of(text)) width = std::max(width, line.size());
  return width;
}

// Two ranks of one host, with and without the columns of PyTorch's loops.
std::vector<RankTime> two_ranks(bool parted) {
  RankTime a;
  a.host = "node7", a.steps = 1635, a.window_steps = 1632;
  a.seconds = {2.3, 3.4, 16.4, 23.4, 1.8, 1.5, 0, 0, 0, 32.9};
  a.late = {{.rank = 1, .steps = 187, .seconds = 0.2, .phase = "forward"}};
  if (parted) a.seconds[RankTime::kData] = 1.25, a.seconds[RankTime::kOptimizer] = 7.5;
  RankTime b = a;
  b.rank = 1, b.seconds[2] += 1, b.seconds[4] -= 1;
  if (parted) b.seconds[RankTime::kUnknown] = 0.5;
  return {a, b};
}

TEST_CASE("Report: where there is room, and in a pipe, the table is the wide one") {
  for (const bool parted : {false, true}) {
    const std::string wide = report_table(two_ranks(parted));
    CHECK_THAT(wide, Contains("rest   per cent of the wall time\n") && Contains("   node7\n"));
    CHECK(report_table(two_ranks(parted), 200) == wide);
    CHECK(report_table(two_ranks(parted), widest(wide)) == wide);
    CHECK(report_table(two_ranks(parted), widest(wide) - 1) != wide);
  }
}

TEST_CASE("Report: at 120 columns only room between columns is lost") {
  const auto plain = lines_of(report_table(two_ranks(false), 120));
  CHECK(plain[0] == "rank  wall s  steps  startup  outside  forward  backward  waiting  transfer  "
                    "unknown  rest  host");
  CHECK(plain[1] == "0      81.70   1635      2.8      4.2     20.1      28.6      2.2       1.8  "
                    "    0.0  40.3  node7");
  CHECK(plain[3] == "all but rank, wall s, steps: per cent of the wall time.");
  const auto parted = lines_of(report_table(two_ranks(true), 120));
  CHECK_THAT(parted[0], Contains("unknown  data  optimizer  rest  host"));
}

TEST_CASE("Report: at 100 columns the host goes below, then short headings come") {
  const auto plain = lines_of(report_table(two_ranks(false), 100));
  CHECK_THAT(plain[0], Contains("startup  outside") && EndsWith("rest  host"));
  const std::string text = report_table(two_ranks(true), 100);
  const auto parted = lines_of(text);
  CHECK(parted[0] == "rank  wall s  steps  start  out   fwd   bwd  wait  xfer  unkn  data  optim  "
                     "rest");
  CHECK_THAT(text, Contains("wall time. host: node7\n") &&
                       Contains("\nstart, out, fwd, bwd, wait, xfer, unkn, optim: startup, "));
  CHECK_THAT(text, !Contains("left out"));
}

TEST_CASE("Report: at 80 columns what is nothing goes first, and is named") {
  const std::string text = report_table(two_ranks(false), 80);
  CHECK(lines_of(text)[0] == "rank  wall s  steps  start  out   fwd   bwd  wait  xfer  rest");
  CHECK_THAT(text, Contains("\n0.0 for all ranks: unknown.\n"));
  // All columns are there, also of PyTorch's loops; below that with one blank between them.
  const std::string rest = "unkn  data  optim  rest";
  CHECK_THAT(lines_of(report_table(two_ranks(true), 80))[0], EndsWith(rest));
  const auto near = lines_of(report_table(two_ranks(true), 70));
  CHECK(near[0] == "rank wall s steps start out  fwd  bwd wait xfer unkn data optim rest");
  CHECK_THAT(near[2], StartsWith("1     90.95  1635   2.5 3.7 19.1"));
}

TEST_CASE("Report: whole columns go in their order, and what was in them is below") {
  std::string text = report_table(two_ranks(true), 56);
  CHECK(lines_of(text)[0] == "rank wall s steps out  fwd  bwd wait xfer data optim");
  std::ranges::replace(text, '\n', ' ');
  CHECK_THAT(text, Contains("left out, from the lowest to the highest: startup 2.5, unknown 0.0 to "
                            "0.6, rest 36.2 to 36.4; in a pipe all"));
  CHECK_THAT(report_table(two_ranks(true), 30), StartsWith("rank wall s  bwd wait xfer\n"));
  CHECK_THAT(report_table(two_ranks(true), 12), StartsWith("rank wall s\n0     90.45\n"));
}

TEST_CASE("Report: at no width a line is wider, a number cut or a share changed") {
  auto ranks = two_ranks(true);
  ranks[0].rank = 4095, ranks[0].steps = 12'345'678;
  for (double& part : ranks[0].seconds) part *= 30'000;  // 30 days.
  for (std::size_t width = 40; width <= 220; ++width) {
    const std::string text = report_table(ranks, width);
    CAPTURE(width, text);
    CHECK(widest(text) <= width);
    const auto cells = [&](const std::string& line) {
      std::istringstream in(line);
      return std::vector<std::string>{std::istream_iterator<std::string>(in), {}};
    };
    CHECK(cells(lines_of(text)[2])[1] == "2713500.00");
    CHECK_THAT(text, Contains("12345678"));
    CHECK_THAT(text, Contains("node7"));
  }
}

}  // namespace
}  // namespace ddprun::launcher
