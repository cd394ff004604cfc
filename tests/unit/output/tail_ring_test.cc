#include "agent/lines/lines.h"

#include <catch2/catch.hpp>
#include <deque>
#include <numeric>

namespace ddprun::agent {
namespace {

TEST_CASE("TailRing: the last lines, oldest first", "[tail_ring]") {
  TailRing ring;
  CHECK(ring.lines().empty());
  ring.add("one");
  ring.add("");
  ring.add("three");
  CHECK(ring.lines() == std::vector<std::string>{"one", "", "three"});
}

TEST_CASE("TailRing: no more lines than the limit", "[tail_ring]") {
  TailRing ring;
  for (int i = 0; i < 1000; ++i) ring.add("line " + std::to_string(i));
  const std::vector<std::string> lines = ring.lines();
  REQUIRE(lines.size() == kTailLines);
  CHECK(lines.front() == "line 960");
  CHECK(lines.back() == "line 999");
}

TEST_CASE("TailRing: no more bytes than the limit, whatever the lengths", "[tail_ring]") {
  TailRing ring;
  std::deque<std::string> all;
  for (std::size_t i = 0; i < 500; ++i) {
    all.push_back(std::string(i * 37 % 3000, static_cast<char>('a' + i % 26)));
    ring.add(all.back());
    const std::vector<std::string> lines = ring.lines();
    REQUIRE(lines.size() <= all.size());
    REQUIRE(std::accumulate(lines.begin(), lines.end(), std::size_t{0},
                            [](std::size_t sum, const auto& l) { return sum + l.size() + 1; }) <=
            kTailBytes + 1);
    // All but the oldest are whole.
    for (std::size_t back = 1; back < lines.size(); ++back) {
      REQUIRE(lines[lines.size() - back] == all[all.size() - back]);
    }
  }
}

TEST_CASE("TailRing: of a line above the limit the end is kept", "[tail_ring]") {
  TailRing ring;
  ring.add("before");
  ring.add(std::string(kTailBytes, 'x') + "the end");
  const std::vector<std::string> lines = ring.lines();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].size() == kTailBytes - 1);
  CHECK(lines[0].ends_with("the end"));
}

TEST_CASE("TailRing: its text and its end say which bytes it has", "[tail_ring]") {
  TailRing ring;
  std::string all;
  for (int i = 0; i < 5000; ++i) {
    const std::string line = "line " + std::to_string(i);
    ring.add(line);
    all += line + "\n";
    REQUIRE(ring.end() == all.size());
    REQUIRE(all.ends_with(ring.text()));
  }
  CHECK(ring.text().size() == kTailBytes);
}

TEST_CASE("TailRing: the last lines of a text with and without a last end of line", "[tail_ring]") {
  CHECK(last_lines_of("a\nb\n") == std::vector<std::string>{"a", "b"});
  CHECK(last_lines_of("a\nb") == std::vector<std::string>{"a", "b"});
  CHECK(last_lines_of("").empty());
}

}  // namespace
}  // namespace ddprun::agent
