#include "agent/lines/lines.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

// Writes down what it is given: "L:" a line, "C:" a piece of a cut one, "P:" progress.
struct Recorder : LineSink {
  std::vector<std::string> seen;
  void on_line(std::string_view line) override { seen.push_back("L:" + std::string(line)); }
  void on_piece(std::string_view piece) override { seen.push_back("C:" + std::string(piece)); }
  void on_progress(std::string_view state) override { seen.push_back("P:" + std::string(state)); }

  std::vector<std::string> without_progress() const {
    std::vector<std::string> lines;
    for (const std::string& entry : seen) {
      if (entry[0] != 'P') lines.push_back(entry);
    }
    return lines;
  }
};

using Seen = std::vector<std::string>;

Seen split(const std::vector<std::string>& chunks) {
  Recorder recorder;
  LineSplitter splitter;
  for (const std::string& chunk : chunks) splitter.feed(chunk, recorder);
  splitter.finish(recorder);
  return recorder.seen;
}

TEST_CASE("LineSplitter: lines, wherever the stream is cut", "[line_splitter]") {
  CHECK(split({"one\ntwo\n"}) == Seen{"L:one", "L:two"});
  CHECK(split({"o", "ne", "\nt", "wo", "\n"}) == Seen{"L:one", "L:two"});
  CHECK(split({"\n\n"}) == Seen{"L:", "L:"});
  CHECK(split({}) == Seen{});
}

TEST_CASE("LineSplitter: a last line without its end is a line", "[line_splitter]") {
  CHECK(split({"one\nlast words"}) == Seen{"L:one", "L:last words"});
  CHECK(split({"one\n"}) == Seen{"L:one"});
}

TEST_CASE("LineSplitter: a carriage return before the end of line belongs to it",
          "[line_splitter]") {
  CHECK(split({"one\r\ntwo\r\n"}) == Seen{"L:one", "L:two"});
  Recorder torn;
  LineSplitter splitter;
  splitter.feed("one\r", torn);
  splitter.feed("\ntwo", torn);
  splitter.finish(torn);
  CHECK(torn.without_progress() == Seen{"L:one", "L:two"});
}

TEST_CASE("LineSplitter: of progress only the last state becomes a line", "[line_splitter]") {
  CHECK(split({"10%\r20%\rdone\n"}) == Seen{"P:10%", "P:20%", "L:done"});
  CHECK(split({"\r10%\r20%\r\nnext\n"}) == Seen{"P:10%", "L:20%", "L:next"});
  CHECK(split({"10%\r20%\r"}) == Seen{"P:10%", "P:20%", "L:20%"});
  CHECK(split({"10%\r\nno more\n\n"}) == Seen{"L:10%", "L:no more", "L:"});
}

TEST_CASE("LineSplitter: a line above the limit comes in pieces that say so", "[line_splitter]") {
  const std::string body(2 * kLineBytesMax + 5, 'x');
  const Seen whole = split({body + "\nshort\n"});
  REQUIRE(whole.size() == 4);
  CHECK(whole[0] == "C:" + std::string(kLineBytesMax, 'x'));
  CHECK(whole[1] == "C:" + std::string(kLineBytesMax, 'x'));
  CHECK(whole[2] == "L:xxxxx");
  CHECK(whole[3] == "L:short");
  CHECK(split({body.substr(0, kLineBytesMax) + "\n"}).size() == 1);
}

TEST_CASE("LineSplitter: never holds more than one line of the limit", "[line_splitter]") {
  Recorder recorder;
  LineSplitter splitter;
  for (int i = 0; i < 1000; ++i) splitter.feed(std::string(1000, 'y'), recorder);
  splitter.finish(recorder);
  std::size_t bytes = 0;
  for (const std::string& entry : recorder.seen) {
    CHECK(entry.size() <= kLineBytesMax + 2);
    bytes += entry.size() - 2;
  }
  CHECK(bytes == 1'000'000);
}

TEST_CASE("LineSplitter: a cut does not tear a UTF-8 character", "[line_splitter]") {
  std::string body(kLineBytesMax - 1, 'x');
  const Seen seen = split({body + "\u00e9tude\n"});
  REQUIRE(seen.size() == 2);
  CHECK(seen[0] == "C:" + body);
  CHECK(seen[1] == "L:\u00e9tude");
  // Bytes that are no UTF-8 at all are cut where the limit is.
  CHECK(split({std::string(kLineBytesMax + 1, '\x80') + "\n"})[0].size() == kLineBytesMax + 2);
}

TEST_CASE("LineSplitter: the lines do not depend on how the bytes arrive", "[line_splitter]") {
  std::mt19937 random(20261121);
  const std::string alphabet = "ab\n\r";
  for (int round = 0; round < 2000; ++round) {
    std::string stream;
    for (int i = 0; i < 40; ++i) stream += alphabet[random() % alphabet.size()];
    Recorder whole, pieces;
    LineSplitter one, other;
    one.feed(stream, whole);
    one.finish(whole);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = 1 + random() % 7;
      other.feed(stream.substr(at, size), pieces);
      at += size;
    }
    other.finish(pieces);
    CAPTURE(stream);
    REQUIRE(whole.without_progress() == pieces.without_progress());
  }
}

}  // namespace
}  // namespace ddprun::agent
