#include "common/archive/json.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {
namespace {

using archive::JsonText;
using nlohmann::json;

std::string list_of(std::string_view bytes) {
  JsonText out;
  out.open('[');
  out.text(bytes);
  out.close(']');
  return out.take();
}

TEST_CASE("JsonText: objects, lists and every kind of value, with commas where they belong",
          "[wire]") {
  JsonText out;
  out.open('{');
  out.name("empty"), out.open('{'), out.close('}');
  out.name("list"), out.open('['), out.whole(1), out.truth(false), out.open('['), out.close(']');
  out.open('{'), out.name("a"), out.text("b"), out.name("c"), out.truth(true), out.close('}');
  out.text(""), out.close(']');
  out.name("least"), out.whole(std::numeric_limits<std::int64_t>::min());
  out.close('}');
  CHECK(out.take() == R"({"empty":{},"list":[1,false,[],{"a":"b","c":true},""],)"
                      R"("least":-9223372036854775808})");
}

TEST_CASE("JsonText: text comes back as it was, and what is no UTF-8 is replaced", "[wire]") {
  CHECK(list_of(R"(say "hi" \o/)") == R"(["say \"hi\" \\o/"])");
  CHECK(list_of("\"") == R"(["\""])");
  CHECK(list_of("a\nb\x7f") == "[\"a\\nb\x7f\"]");
  CHECK(list_of("\xff") == "[\"\xef\xbf\xbd\"]");
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 40, ' ');
    for (char& c : bytes) c = static_cast<char>(random() % (i % 2 ? 128 : 256));
    CAPTURE(bytes);
    const std::string expected =
        json::array({bytes}).dump(-1, ' ', false, json::error_handler_t::replace);
    CHECK(list_of(bytes) == expected);
  }
}

TEST_CASE("Wire: nesting is bounded, and brackets in a text do not count", "[wire]") {
  const auto leave = [](const std::string& reason) {
    return decode_agent_message(R"({"is":"leave","signal":1,"more":)" + std::string(7, '[') +
                                std::string(7, ']') + R"(,"reason":")" + reason + "\"}");
  };
  CHECK(leave("bye").has_value());
  CHECK(leave(std::string(100, '{')).has_value());
  CHECK(leave(R"(\")" + std::string(100, '[')).has_value());
  const auto deep = decode_agent_message(R"({"is":"leave","signal":1,"reason":"","more":)" +
                                         std::string(8, '[') + std::string(8, ']') + "}");
  REQUIRE_FALSE(deep.has_value());
  CHECK(deep.error().context == "decoding a message that is not a JSON object");
}

}  // namespace
}  // namespace ddprun::rendezvous
