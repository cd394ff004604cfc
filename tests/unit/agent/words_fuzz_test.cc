// The body of words_fuzz on real words with seeded damage, so that every build runs it.

#include "tests/fuzz/agent/words_fuzz.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

namespace ddprun::fuzz {
namespace {

// Of letters that take one to four bytes, so that a cut falls into one.
std::string long_text(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\x89 ";
  return text;
}

// The first byte chooses what the rest is: see words_fuzz.cc.
std::string error_file(const std::string& message) {
  std::string bytes(1, '\0');
  bytes += R"({"message": )";
  bytes += message;
  bytes += '}';
  return bytes;
}

TEST_CASE("Words: damaged error files, tracebacks, names and counters are taken as they come",
          "[fuzz]") {
  const std::vector<std::string> real = {
      error_file(R"x({"message": "ValueError: boom", "extraInfo": {"py_callstack": "a\nb"}})x"),
      error_file(R"x({"message": "m", "extraInfo": {"cpp_callstack": "./t(_Z3foov+0x1)"}})x"),
      error_file(R"x({"message": ")x" + long_text(5000) + R"x("})x"),
      error_file(R"x({"message": "m\u00e9", "extraInfo": {"py_callstack": ")x" + long_text(4000) +
                 R"x("}})x"),
      error_file(R"x({"message": ")x" + long_text(2000) +
                 R"x(", "extraInfo": {"cpp_callstack": ")x" + long_text(4000) + R"x("}})x"),
      "\1Traceback (most recent call last):\n  File \"x\"\nValueError: boom",
      "\1rank 0 on a: all_reduce #1: rank 1 on b has given up because of rank 2 on c",
      "\2./t(_ZN5model4lossEv+0x1f) [0x4] (_Z",
      "\0034:cpu,memory:/a\n0::/b\noom_kill 12\n",
      "\4caf\xc3\xa9 \"x\" \\ \x01",
      "\5\x1b[1;31mred\x1b[0m \x1b]0;title\x1b\\ \xc2\x9b[2J\x1bPq\x1b[?25l\a\r"};
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = real[random() % real.size()];
    for (unsigned n = random() % 6; n > 0; --n) {
      const std::size_t at = 1 + random() % (bytes.size() - 1);
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.insert(at, 1, static_cast<char>(random())); break;
        default: bytes.resize(std::max<std::size_t>(at, 2));
      }
    }
    fuzz_words(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  SUCCEED("every promise of words_fuzz.cc held");
}

}  // namespace
}  // namespace ddprun::fuzz
