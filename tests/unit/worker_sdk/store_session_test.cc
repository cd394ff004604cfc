// The small store server's protocol, byte by byte: golden bytes recorded from PyTorch 2.6 and 2.14.

#include "worker_sdk/store/store_session.h"

#include <catch2/catch.hpp>
#include <random>

namespace ddprun::worker_sdk {
namespace {

// "c> 01 02 00*7" as bytes.
std::string bytes(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i + 1 < text.size();) {
    if (text[i] == ' ') {
      ++i;
      continue;
    }
    const auto value = static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    const bool repeated = i + 3 < text.size() && text[i + 2] == '*';
    result.append(repeated ? static_cast<std::size_t>(text[i + 3] - '0') : 1, value);
    i += repeated ? 4 : 2;
  }
  return result;
}

struct Server {
  StoreTable table;
  StoreSession session;

  Server() { REQUIRE(session.feed(bytes("00 ce f7 85 3c"), table)); }
  std::string ask(const std::string& request) {
    if (!session.feed(bytes(request), table)) return "closed";
    return std::exchange(session.output(), {});
  }
};

TEST_CASE("StoreSession: answers as PyTorch's server does", "[store_session]") {
  Server s;
  CHECK(s.ask("0d ca 56 00 00") == bytes("ca 56 00 00"));
  CHECK(s.ask("04 05 00*7 69 6e 69 74 2f 01 00*7") == bytes("01 00*7"));
  CHECK(s.ask("01 02 00*7 2f 6b 02 00*7 76 31") == "");
  CHECK(s.ask("06 01 00*7 02 00*7 2f 6b") == bytes("00"));
  CHECK(s.ask("03 02 00*7 2f 6b") == bytes("02 00*7 76 31"));
  CHECK(s.ask("04 02 00*7 2f 6e fe ff*7") == bytes("fe ff*7"));
  CHECK(s.ask("02 02 00*7 2f 6b 02 00*7 76 31 02 00*7 76 32") == bytes("02 00*7 76 32"));
  CHECK(s.ask("02 02 00*7 2f 6d 01 00*7 65 01 00*7 78") == bytes("01 00*7 65"));
  CHECK(s.ask("05 02 00*7 02 00*7 2f 6b 03 00*7 2f 7a 7a") == bytes("01"));
  CHECK(s.ask("06 01 00*7 05 00*7 2f 6e 6f 70 65") == "");
  CHECK(s.ask("0c") == bytes("01"));
  CHECK(s.ask("07") == bytes("03 00*7"));
  CHECK(s.ask("08 02 00*7 2f 6b") == bytes("01 00*7"));
  CHECK(s.ask("08 02 00*7 2f 6b") == bytes("00*8"));
  CHECK(s.ask("09 02 00*7 2f 61 02 00*7 31 32") == "");
  CHECK(s.ask("0b 02 00*7 02 00*7 2f 78 01 00*7 31 02 00*7 2f 79 02 00*7 32 32") == "");
  CHECK(s.ask("0a 02 00*7 02 00*7 2f 78 02 00*7 2f 79") == bytes("01 00*7 31 02 00*7 32 32"));
}

TEST_CASE("StoreSession: a wait is answered when the last key comes", "[store_session]") {
  Server s;
  StoreSession other;
  REQUIRE(other.feed(bytes("00 ce f7 85 3c"), s.table));
  CHECK(s.ask("06 02 00*7 01 00*7 61 01 00*7 62") == "");
  REQUIRE(other.feed(bytes("01 01 00*7 61 00*8"), s.table));
  s.session.wake(s.table);
  CHECK(s.session.output().empty());
  REQUIRE(other.feed(bytes("01 01 00*7 62 00*8"), s.table));
  s.session.wake(s.table);
  CHECK(s.session.output() == bytes("00"));
  s.session.wake(s.table);
  CHECK(s.session.output() == bytes("00"));  // Once.
}

TEST_CASE("StoreSession: requests may come in pieces of any size", "[store_session]") {
  const std::string request = bytes(
      "00 ce f7 85 3c 01 02 00*7 2f 6b 02 00*7 76 31 "
      "0b 01 00*7 01 00*7 78 01 00*7 31 03 02 00*7 2f 6b");
  for (std::size_t piece = 1; piece <= request.size(); ++piece) {
    StoreTable table;
    StoreSession session;
    for (std::size_t at = 0; at < request.size(); at += piece) {
      REQUIRE(session.feed(std::string_view(request).substr(at, piece), table));
    }
    CHECK(session.output() == bytes("02 00*7 76 31"));
    CHECK(table.size() == 2);
  }
}

TEST_CASE("StoreSession: who breaks the protocol or a limit is disconnected", "[store_session]") {
  StoreTable table;
  CHECK_FALSE(StoreSession().feed(bytes("01"), table));              // No VALIDATE.
  CHECK_FALSE(StoreSession().feed(bytes("00 ce f7 85 3d"), table));  // Wrong magic.
  CHECK_FALSE(StoreSession().feed("GET / HTTP/1.1\r\n", table));
  for (const char* request : {"0e", "ff", "01 01 20 00*6",      // Unknown; a key above 8 KiB.
                              "01 01 00*7 61 01 00*2 80 00*4",  // A value above 8 MiB (2^31 + 1).
                              "05 ff*8",                        // 2^64 - 1 keys.
                              "0a 01 00*2 80 00*4"}) {
    CAPTURE(request);
    Server s;
    CHECK(s.ask(request) == "closed");
  }
  Server s;
  CHECK(s.ask("01 01 00*7 61 01 00*7 78") == "");
  CHECK(s.ask("04 01 00*7 61 01 00*7") == "closed");  // Not a number.
}

TEST_CASE("StoreSession: counters neither overflow nor accept other text", "[store_session]") {
  StoreTable table;
  CHECK(table.add("n", std::numeric_limits<std::int64_t>::max()).has_value());
  CHECK_FALSE(table.add("n", 1));
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "9223372036854775808"}) {
    CAPTURE(text);
    table.set("t", text);
    CHECK_FALSE(table.add("t", 1));
  }
}

TEST_CASE("StoreSession: random bytes do no harm", "[store_session]") {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    Server s;
    bool open = true;
    for (int i = 0; i < 50 && open; ++i) {
      std::string piece(1 + random() % 40, '\0');
      // Mostly small numbers, so that some requests are well-formed.
      for (char& c : piece) c = static_cast<char>(random() % 3 == 0 ? random() % 14 : 0);
      open = s.session.feed(piece, s.table);
      s.session.wake(s.table);
    }
    CHECK(s.session.output().size() < (1 << 20));
  }
}

}  // namespace
}  // namespace ddprun::worker_sdk
