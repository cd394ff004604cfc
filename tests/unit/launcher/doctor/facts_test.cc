#include "launcher/doctor/node_facts.h"

#include <catch2/catch.hpp>
#include <limits>

#include "launcher/doctor/node_facts.h"
#include "tests/fuzz/launcher/facts_fuzz.h"
#include "tests/unit/launcher/doctor/healthy.h"

namespace ddprun::doctor {
namespace {

TEST_CASE("Facts: what was written is read, with types", "[doctor]") {
  Facts facts = test::healthy();
  facts.set_why("gpu", "no answer within 15 s");
  const auto read = decode_facts(encode(facts));
  REQUIRE(read.has_value());
  CHECK(*read == facts);
  CHECK(read->get(Text{"host"}) == "node1");
  CHECK(read->get(Real{"loopback_gb_s"}) == 3.0);
  CHECK_FALSE(read->get(Text{"kernel"}));
  CHECK_FALSE(read->get(Whole{"host"}));  // Of another type.
  CHECK(read->why("gpu") == "no answer within 15 s");
  CHECK(read->why("cpu").empty());
}

TEST_CASE("Facts: what is not finite is not known, long texts are cut", "[doctor]") {
  Facts facts;
  facts.set(Real{"loopback_gb_s"}, std::numeric_limits<double>::infinity());
  CHECK_FALSE(facts.get(Real{"loopback_gb_s"}));
  facts.set(Text{"host"}, std::string(5'000, 'h'));
  CHECK(facts.get(Text{"host"})->size() == kTextBytesMax);
}

TEST_CASE("Facts: newer ones win, lists are appended", "[doctor]") {
  Facts a = test::healthy(), b;
  b.set(Text{"host"}, std::string("other"));
  b.add("interfaces", Facts());
  a.merge(b);
  CHECK(a.get(Text{"host"}) == "other");
  CHECK(a.list("interfaces").size() == 2);
  CHECK(a.list("nothing").empty());
}

TEST_CASE("Facts: what is no text of facts is refused", "[doctor]") {
  const std::string kBad[] = {
      "",
      "[]",
      "7",
      "{",
      R"({"Host":"a"})",
      R"({"a b":1})",
      R"({"a":null})",
      R"({"a":true})",
      R"({"a":1e999})",
      R"({"a":18446744073709551615})",
      R"({"a":{"b":1}})",
      R"({"a":[1]})",
      R"({"a":[{"b":[]}]})",
      R"({"why":{"a":[1]}})",
      R"({"a":")" + std::string(kTextBytesMax + 1, 'x') + R"("})",
      R"({")" + std::string(kNameBytesMax + 1, 'x') + R"(":1})",
      std::string(100'000, '['),
      R"({"a":)" + std::string(50'000, '[') + std::string(50'000, ']') + "}",
  };
  for (const std::string& text : kBad) {
    INFO(text.substr(0, 60));
    CHECK_FALSE(decode_facts(text).has_value());
  }
}

TEST_CASE("Facts: there are no more of them than a node has", "[doctor]") {
  std::string many = "{";
  for (std::size_t i = 0; i <= kValuesMax; ++i) {
    many += (i ? ",\"a" : "\"a") + std::to_string(i) + "\":1";
  }
  CHECK_FALSE(decode_facts(many + "}").has_value());
  CHECK_FALSE(decode_facts(std::string(kFactsBytesMax + 1, ' ')).has_value());
}

TEST_CASE("Facts: any bytes are read or refused", "[doctor][fuzz]") {
  const std::string seed = encode(test::healthy());
  std::uint64_t state = 88172645463325252;
  for (int round = 0; round < 2'000; ++round) {
    std::string text = seed;
    for (int change = 0; change < 4; ++change) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      text[state % text.size()] = static_cast<char>(state >> 32);
    }
    fuzz::fuzz_facts(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
}

TEST_CASE("Requests: each is read as it was written, and nothing else is", "[doctor]") {
  using launcher::DoctorRequest, launcher::decode_request;
  using Kind = DoctorRequest::Kind;
  const DoctorRequest kAll[] = {
      {.kind = Kind::kFacts},
      {.kind = Kind::kClock},
      {.kind = Kind::kListen, .port = 29'517, .nonce = "n"},
      {.kind = Kind::kMeet, .host = "::1", .port = 1, .nonce = "n"},
      {.kind = Kind::kReach, .name = "node2", .host = "10.0.0.2", .port = 2, .nonce = "n"},
      {.kind = Kind::kSend, .name = "node2", .host = "node2", .port = 65'535, .nonce = "n"},
      {.kind = Kind::kSendOver,
       .subnet = "10.1.0.0/24",
       .name = "node2",
       .host = "10.1.0.2",
       .port = 65'535,
       .nonce = "n"}};
  for (const DoctorRequest& request : kAll) CHECK(decode_request(encode(request)) == request);
  for (const char* text : {"", "fact", "facts x", "listen n", "listen n 65536", "listen n -1",
                           "listen  1", "meet h 1x n", "signal SIGINT", "send a b 1 n more"}) {
    INFO(text);
    CHECK_FALSE(decode_request(text));
  }
  CHECK_FALSE(launcher::answer_in("[default0]: step 1"));
  CHECK(launcher::answer_in("ddprun-doctor {}").value().has_value());
  CHECK_FALSE(launcher::answer_in("ddprun-doctor {").value().has_value());
}

}  // namespace
}  // namespace ddprun::doctor
