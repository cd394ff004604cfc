#include "common/frames.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/fuzz/frames_fuzz.h"
#include "tests/support/bytes.h"

namespace ddprun {
namespace {

using test::bytes;

TEST_CASE("Frames: a body follows its length, big-endian", "[frames]") {
  std::string out;
  append_frame(out, "hi");
  append_frame(out, "");
  append_frame(out, std::string(300, 'x'));
  CHECK(out == bytes("00*3 02 \"hi\" 00*4 00 00 01 2c 78*300"));
}

TEST_CASE("Frames: bodies come out whole however the bytes are cut", "[frames]") {
  const std::string input = bytes("00*3 02 \"hi\" 00*4 00*3 03 \"you\"");
  for (std::size_t cut = 0; cut <= input.size(); ++cut) {
    FrameReader reader;
    std::vector<std::string> bodies;
    for (const std::string& part : {input.substr(0, cut), input.substr(cut)}) {
      reader.feed(part);
      while (const auto body = reader.next().value()) bodies.push_back(*body);
    }
    CAPTURE(cut);
    REQUIRE(bodies == std::vector<std::string>{"hi", "", "you"});
  }
}

TEST_CASE("Frames: a length above the limit is refused before its body comes", "[frames]") {
  FrameReader reader(100);
  reader.feed(bytes("00*3 64"));
  CHECK_FALSE(reader.next().value().has_value());
  FrameReader other(100);
  other.feed(bytes("00*3 65"));
  REQUIRE(other.next().has_error());
  CHECK(other.next().error().code == Errc::kFrameTooLarge);
  CHECK(other.next().error().context == "reading a frame of 101 bytes");
}

TEST_CASE("Frames: the largest body passes", "[frames]") {
  std::string out;
  append_frame(out, std::string(kFrameBytesMax, 'x'));
  FrameReader reader;
  reader.feed(out);
  CHECK(reader.next().value()->size() == kFrameBytesMax);
}

TEST_CASE("Frames: random bytes break no promise", "[frames][fuzz]") {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string input;
    // Lengths near the limit, often enough that bodies follow.
    while (input.size() < 50 || random() % 4 != 0) {
      input +=
          std::string(2, '\0') + static_cast<char>(random() % 2) + static_cast<char>(random() % 60);
      input += std::string(random() % 70, static_cast<char>(random()));
    }
    fuzz::fuzz_frames(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
}

}  // namespace
}  // namespace ddprun
