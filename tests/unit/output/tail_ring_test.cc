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

TEST_CASE("TailRing: of a long line the beginning and the end are kept, and what came before",
          "[tail_ring]") {
  TailRing ring;
  ring.add("before");
  ring.add("ValueError: " + std::string(10 * kTailBytes, 'x') + "the end");
  ring.add(std::string(kTailLineBytes - 1, 'y'));
  const std::vector<std::string> lines = ring.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "before");
  CHECK(lines[1].size() == kTailLineBytes / 2);
  CHECK(lines[1].starts_with("ValueError: xxx"));
  CHECK(lines[1].ends_with("xxthe end"));
  CHECK(lines[1].find(" ... 163859 bytes ... ") != std::string::npos);
  CHECK(lines[2] == std::string(kTailLineBytes - 1, 'y'));
}

TEST_CASE("Shortened: no letter is cut, and no more bytes are left than asked for", "[tail_ring]") {
  CHECK(shortened("short", 5) == "short");
  CHECK(shortened("a little longer", 8) == "a little");
  std::string letters;
  for (int i = 0; i < 100; ++i) letters += "\xe2\x82\xac";  // A euro sign.
  for (std::size_t max = 0; max < letters.size(); ++max) {
    const std::string text = shortened(letters, max);
    CHECK(text.size() <= max);
    std::size_t bytes = 0;
    for (const char c : text) bytes += (c & '\x80') != 0 ? 1 : 0;
    CHECK(bytes % 3 == 0);
    if (max >= 40) CHECK(text.find(" ... 300 bytes ... ") != std::string::npos);
  }
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
