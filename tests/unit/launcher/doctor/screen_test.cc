#include "launcher/doctor/health_report.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/text/figures.h"
#include "tests/unit/launcher/doctor/healthy.h"

namespace ddprun::doctor {
namespace {

HealthReport spoiled() {
  Facts facts = test::healthy();
  facts.set(Whole{"infiniband_devices"}, std::int64_t{1});
  facts.set(Whole{"locked_bytes"}, std::int64_t{65'536});
  facts.set(Whole{"tmp_free_bytes"}, std::int64_t{310'000'000});
  HealthReport report = report_of_node({"node1", facts}, {.workers = 8});
  report.took_ms = 900;
  return report;
}

TEST_CASE("Screen: a line has what was found, why that matters, and the cure", "[doctor]") {
  const std::string text = screen(spoiled(), {});
  CHECK_THAT(text, Catch::Contains(" ✗ locked memory    64 KiB               "
                                   "NCCL over InfiniBand needs more: ulimit -l unlimited\n"));
  CHECK_THAT(text, Catch::Contains(" MACHINE\n ✓ open files       1,048,576\n"));
  CHECK_THAT(text, Catch::Contains(" 1 to cure, 1 warning; 22 checks took 900 ms\n"));
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("Screen: a kernel without pidfds is named, and is nothing to cure", "[doctor]") {
  Facts facts = test::healthy();
  facts.set(Text{"kernel"}, "4.18.0 x86_64");
  facts.set(Whole{"pidfds"}, std::int64_t{1});
  CHECK_THAT(screen(report_of_node({"node1", facts}, {}), {}),
             Catch::Contains("✓ kernel           4.18.0 x86_64\n"));
  facts.set(Whole{"pidfds"}, std::int64_t{0});
  const std::string text = screen(report_of_node({"node1", facts}, {}), {});
  CHECK_THAT(text, Catch::Contains("– kernel           4.18.0 x86_64, without pidfds"));
  CHECK_THAT(text, Catch::Contains(" all well; 22 checks"));
}

TEST_CASE("Screen: without UTF-8 there is ASCII, with colours the cure is bold", "[doctor]") {
  const std::string plain = screen(spoiled(), {.utf8 = false});
  CHECK(std::all_of(plain.begin(), plain.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  CHECK_THAT(plain, Catch::Contains(" x locked memory"));
  CHECK_THAT(plain, Catch::Contains(" ! TMPDIR"));
  const std::string coloured = screen(spoiled(), {.colours = true});
  CHECK_THAT(coloured, Catch::Contains("\x1b[31m✗\x1b[0m"));
  CHECK_THAT(coloured, Catch::Contains("\x1b[1mulimit -l unlimited\x1b[0m"));
}

std::size_t widest(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST_CASE("Screen: a cure that does not fit stands on a line of its own", "[doctor]") {
  const std::string text = screen(spoiled(), {.utf8 = false, .width = 80});
  CHECK_THAT(text, Catch::Contains(" x locked memory    64 KiB\n"
                                   "                    NCCL over InfiniBand needs more\n"
                                   "                    ulimit -l unlimited\n"));
  CHECK(widest(text) <= 80);
}

TEST_CASE("Screen: of several nodes what is wrong comes first, the rest is folded", "[doctor]") {
  auto nodes = test::healthy_nodes();
  nodes[1].facts.set(Real{"clock_offset_ms"}, 4'100.0);
  nodes[1].facts.set(Whole{"files_hard"}, std::int64_t{64});
  HealthReport report = report_of_nodes(nodes, {.workers = 8, .several = true});
  const std::string text = screen(report, {});
  CHECK_THAT(text, Catch::Contains("                     node1      node2    node3\n"
                                   " ✗ open files        1,048,576  64       same       "));
  CHECK_THAT(text, Catch::Contains("ulimit -n 1024 on node2\n ▲ clock "));
  CHECK_THAT(text, Catch::Contains("(-v lists them)"));
  CHECK_THAT(screen(report, {.verbose = true}), Catch::Contains(" ✓ processes "));
  CHECK_THAT(text, Catch::Contains("1 to cure, 1 warning; 3 nodes, "));
}

TEST_CASE("Screen: nodes that do not fit are counted", "[doctor]") {
  auto nodes = test::healthy_nodes();
  for (int i = 4; i < 40; ++i) {
    nodes.push_back({"node" + std::to_string(i), test::healthy()});
  }
  const std::string text = screen(report_of_nodes(nodes, {.several = true}), {.width = 80});
  CHECK_THAT(text, Catch::Contains(" more\n"));
}

TEST_CASE("Screen: names of other machines give a terminal no orders", "[doctor]") {
  Facts facts = test::healthy("\x1b]0;mine\x07evil\nname");
  const std::string text = screen(report_of_node({"x", facts}, {}), {});
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\x07') == std::string::npos);
  CHECK(text.find("evil\n") == std::string::npos);
}

TEST_CASE("Report: as JSON it has each check, and the exit code", "[doctor]") {
  const auto json = nlohmann::json::parse(report_json(spoiled()));
  CHECK(json["status"] == "fail");
  CHECK(json["exit_code"] == 2);
  CHECK(json["nodes"] == nlohmann::json({"node1"}));
  CHECK(json["checks"].size() == 22);
  CHECK(json["checks"][2]["name"] == "locked memory");
  CHECK(json["checks"][2]["cure"] == "ulimit -l unlimited");
  // What there is nothing to judge of is no trouble.
  HealthReport well = report_of_node({"node1", test::healthy()}, {});
  for (Row& row : well.rows) row.finding.status = Status::kOk;
  well.rows.front().finding.status = Status::kSkipped;
  CHECK(nlohmann::json::parse(report_json(well))["status"] == "ok");
  const auto several =
      nlohmann::json::parse(report_json(report_of_nodes(test::healthy_nodes(), {})));
  CHECK(several["checks"][0]["values"]["node2"] == "1.2.3");
  CHECK(several["checks"][0]["statuses"]["node2"] == "ok");
}

TEST_CASE("Warnings: the worst comes first, in one sentence with its cure", "[doctor]") {
  const auto sentences = warnings_of(spoiled(), Status::kWarn);
  REQUIRE(sentences.size() == 2);
  CHECK(sentences[0] ==
        "locked memory: 64 KiB (NCCL over InfiniBand needs more); ulimit -l unlimited");
  CHECK(warnings_of(spoiled(), Status::kFail).size() == 1);
}

TEST_CASE("Amounts: numbers as people read them", "[doctor]") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(-1'048'576) == "-1,048,576");
  CHECK(bytes_text(310'000'000) == "310 MB");
  CHECK(limit_text(65'536) == "64 KiB");
  CHECK(limit_text(-1) == "unlimited");
  CHECK(number_text(24.12) == "24.1");
  CHECK(ms_text(0.23) == "0.2 ms");
  CHECK(ms_text(4'120) == "4.1 s");
}

}  // namespace
}  // namespace ddprun::doctor
