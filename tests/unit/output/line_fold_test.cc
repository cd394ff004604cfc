#include "agent/lines/lines.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// What comes out, as people would see it.
struct Folding {
  LineFold fold{100ms};
  TimePoint now{};
  std::vector<std::string> out;

  explicit Folding(int speakers) {
    for (int rank = 0; rank < speakers; ++rank) fold.enter(rank);
  }
  void print(int rank, const std::string& text, int kind = 0, bool whole = true) {
    fold.add(rank, {.ranks = {}, .source = rank, .kind = kind, .text = text, .whole = whole}, now);
    take(false);
  }
  void take(bool all) {
    while (const auto line = fold.take(now, all)) {
      out.push_back(rank_ranges(line->ranks) + ":" + line->text);
    }
  }
  void wait(Duration time) {
    now += time;
    take(false);
  }
};

using Lines = std::vector<std::string>;

TEST_CASE("LineFold: what all say is one line, at once when the last has said it", "[line_fold]") {
  Folding f(3);
  for (const int rank : {0, 2, 1}) f.print(rank, "epoch 1");
  CHECK(f.out == Lines{"0-2:epoch 1"});
  f.print(1, "alone");
  CHECK(f.out.size() == 1);
  f.wait(99ms);
  CHECK(f.out.size() == 1);
  CHECK(*f.fold.deadline() == f.now + 1ms);
  f.wait(1ms);
  CHECK(f.out == Lines{"0-2:epoch 1", "1:alone"});
  CHECK_FALSE(f.fold.deadline());
}

TEST_CASE("LineFold: each rank's lines stay in its order", "[line_fold]") {
  Folding f(2);
  f.print(0, "a");
  f.print(0, "b");
  f.print(1, "b");
  f.print(1, "a");  // After its b: not the a that waits before it.
  f.take(true);
  CHECK(f.out == Lines{"0:a", "0,1:b", "1:a"});
  f.out.clear();
  f.print(0, "x");
  f.print(0, "x");
  f.print(1, "x");
  f.print(1, "x");
  f.take(true);
  // Rank 1's first x joins the later of the two that wait, so its second has to stand alone.
  CHECK(f.out == Lines{"0:x", "0,1:x", "1:x"});
}

TEST_CASE("LineFold: other kinds, and pieces of long lines, are not folded", "[line_fold]") {
  Folding f(2);
  f.print(0, "a", 0);
  f.print(1, "a", 1);
  f.print(0, "piece", 0, false);
  f.print(1, "piece", 0, false);
  f.take(true);
  CHECK(f.out == Lines{"0:a", "1:a", "0:piece", "1:piece"});
}

TEST_CASE("LineFold: one that has ended does not stand for those that have not", "[line_fold]") {
  Folding f(3);
  f.print(0, "done");
  f.fold.leave(0);
  f.print(1, "done");
  CHECK(f.out.empty());  // Two have printed it and two are there, but not the same two.
  f.print(2, "done");
  CHECK(f.out == Lines{"0-2:done"});
  f.print(1, "bye");
  f.fold.enter(2);  // Its other stream.
  f.fold.leave(2);
  f.take(false);
  CHECK(f.out.size() == 1);
  f.fold.leave(2);
  f.take(false);
  CHECK(f.out == Lines{"0-2:done", "1:bye"});
  f.print(1, "last");
  f.fold.leave(1);
  f.take(false);
  CHECK(f.out.back() == "1:last");
}

TEST_CASE("LineFold: it does not keep more than it may", "[line_fold]") {
  LineFold fold(1h, 1000);
  fold.enter(0);
  fold.enter(1);
  for (int i = 0; i < 100; ++i) {
    fold.add(0, {.ranks = {}, .text = std::string(100, static_cast<char>('a' + i % 26))}, {});
    while (fold.take({})) {
    }
  }
  int left = 0;
  while (fold.take({}, true)) ++left;
  CHECK(left <= 10);
}

TEST_CASE("LineFold: nothing is lost and no rank's order is changed, whatever comes",
          "[line_fold]") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    LineFold fold(10ms);
    for (int rank = 0; rank < 4; ++rank) fold.enter(rank);
    TimePoint now{};
    std::vector<Lines> printed(4), shown(4);
    const auto take = [&](bool all) {
      while (const auto line = fold.take(now, all)) {
        for (const int rank : line->ranks)
          shown[static_cast<std::size_t>(rank)].push_back(line->text);
      }
    };
    for (int i = 0; i < 200; ++i) {
      const std::size_t rank = random() % 4;
      const std::string text(1, static_cast<char>('a' + random() % 3));
      printed[rank].push_back(text);
      fold.add(static_cast<int>(rank), {.ranks = {}, .text = text}, now);
      now += std::chrono::milliseconds(random() % 4);
      take(false);
    }
    take(true);
    REQUIRE(shown == printed);
  }
}

TEST_CASE("LineFold: neighbours are ranges", "[line_fold]") {
  CHECK(rank_ranges({0, 1, 2, 3, 6, 8, 9}) == "0-3,6,8,9");
  CHECK(rank_ranges({5}) == "5");
}

TEST_CASE("LineFormat: every line is a JSON object, whatever its bytes", "[line_format]") {
  const LineOrigin origin = make_line_origin({.hostname = "a\"b",
                                              .role = "default",
                                              .rank = 3,
                                              .local_rank = 1,
                                              .restart_count = 2,
                                              .is_stderr = true},
                                             "[default3]:");
  std::string scratch;
  for (const std::string text :
       {"plain", "", "\"quoted\" \\ \t", "caf\xc3\xa9", "torn \xc3", "\xff\x01 nul"}) {
    const std::string line = json_before(origin, 1'700'000'000'000'042)
                                 .append(json_text(text, scratch))
                                 .append(json_after(true));
    const auto object = nlohmann::json::parse(line);
    CHECK(object["host"] == "a\"b");
    CHECK(object["rank"] == 3);
    CHECK(object["stream"] == "stderr");
    CHECK(object["restart_count"] == 2);
    CHECK(object["time"].dump() == "1700000000.000042");
    if (text == "plain" || text.empty() || text[0] == '"') CHECK(object["line"] == text);
  }
  const auto folded = nlohmann::json::parse(json_before_folded(origin, {0, 1}, 0) + "x" +
                                            std::string(json_after(false)));
  CHECK(folded["ranks"] == std::vector<int>{0, 1});
  CHECK(folded["goes_on"] == true);
}

}  // namespace
}  // namespace ddprun::agent
