#include "agent/health/flight_record.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/fuzz/agent/flight_fuzz.h"

namespace ddprun::agent {
namespace {

FlightRecord at(std::string where, std::vector<FlightCall> calls, std::string group = "0") {
  return {.where = std::move(where), .groups = {{std::move(group), std::move(calls)}}};
}

const FlightCall kSumOf20{20, "all_reduce", "[8] Float", false};
const FlightCall kSumOf21{21, "all_reduce", "[8] Float", true};

TEST_CASE("Flight record: a rank that has not come to a collective is named", "[flight]") {
  const FlightRecord waits = at("train.py:55 in step", {kSumOf20, kSumOf21});
  const FlightRecord missing = at("train.py:27 in pause", {kSumOf20});
  CHECK(flight_text({{0, waits}, {1, missing}, {2, waits}}) ==
        "PyTorch's flight recorder: ranks 0, 2 are in all_reduce #21 of [8] Float at "
        "train.py:55 in step; rank 1 has not reached it: its last is all_reduce #20, and it is at "
        "train.py:27 in pause");
}

TEST_CASE("Flight record: of a sub-group only its ranks are missing", "[flight]") {
  FlightRecord both = at("a.py:1", {kSumOf20});
  both.groups.push_back({"7", {{3, "barrier", "", true}}});
  FlightRecord late = at("b.py:2", {kSumOf20});
  late.groups.push_back({"7", {{2, "barrier", "", false}}});
  CHECK(flight_text({{0, both}, {1, late}, {2, at("c.py:3", {kSumOf20})}}) ==
        "PyTorch's flight recorder: rank 0 is in barrier #3 in group 7 at a.py:1; rank 1 has not "
        "reached it: its last is barrier #2, and it is at b.py:2");
}

TEST_CASE("Flight record: a rank that has called nothing in its group is missing", "[flight]") {
  CHECK(flight_text({{0, at("a.py:1", {{1, "barrier", "", true}})}, {1, at("b.py:2", {})}}) ==
        "PyTorch's flight recorder: rank 0 is in barrier #1 at a.py:1; rank 1 has not reached it: "
        "it has called nothing yet, and it is at b.py:2");
  CHECK(flight_text({{0, at("", {})}, {1, at("", {})}}).empty());
}

TEST_CASE("Flight record: ranks that call different things disagree", "[flight]") {
  const auto text_of = [](FlightCall a, FlightCall b) {
    return flight_text({{0, at("a.py:1", {std::move(a)})}, {1, at("b.py:2", {std::move(b)})}});
  };
  CHECK(text_of({5, "all_reduce", "[8] Float", true}, {5, "broadcast", "[4] Float", true}) ==
        "PyTorch's flight recorder: rank 0 has called all_reduce #5 of [8] Float, and rank 1 "
        "broadcast #5 of [4] Float: they disagree");
  CHECK(text_of({5, "all_reduce", "[8] Float", true}, {5, "all_reduce", "[9] Float", true}) ==
        "PyTorch's flight recorder: rank 0 has called all_reduce #5 of [8] Float, and rank 1 "
        "all_reduce #5 of [9] Float: they disagree");
  CHECK(text_of({5, "all_gather", "[8] Float", true}, {5, "all_gather", "[9] Float", true}) ==
        "PyTorch's flight recorder: ranks 0-1 are in all_gather #5 of [8] Float at a.py:1");
}

TEST_CASE("Flight record: the first call that ranks disagree about counts", "[flight]") {
  const FlightRecord a = at("", {{4, "all_reduce", "[1] Int", false}, kSumOf20, kSumOf21});
  const FlightRecord b = at("", {{4, "barrier", "", false}, {20, "reduce", "[8] Float", true}});
  CHECK(flight_text({{0, a}, {3, b}})
            .find("rank 0 has called all_reduce #4 of [1] Int, and rank 3 "
                  "barrier #4") != std::string::npos);
}

TEST_CASE("Flight record: a rank that has ended left its last call behind", "[flight]") {
  FlightRecord failed = at("train.py:55 in step", {kSumOf20, {21, "all_reduce", "", false}});
  failed.ended = true;
  CHECK(flight_text({{0, failed}, {1, at("train.py:27 in pause", {kSumOf20})}}) ==
        "PyTorch's flight recorder: rank 0 ended in all_reduce #21 at train.py:55 in step; rank 1 "
        "has not reached it: its last is all_reduce #20, and it is at train.py:27 in pause");
  failed.ended = false;  // It has left the call in which it was: no rank waits.
  CHECK(flight_text({{0, failed}, {1, at("", {kSumOf20})}}) == "rank 0 is at train.py:55 in step");
}

TEST_CASE("Flight record: who does not answer is named, and where there is no recorder, places",
          "[flight]") {
  CHECK(flight_text({}).empty());
  CHECK(flight_text({{0, FlightRecord()}}).empty());
  CHECK(flight_text({{0, FlightRecord{.where = "a.py:1", .groups = {}}}, {2, std::nullopt}}) ==
        "rank 0 is at a.py:1; rank 2 does not answer: stopped, or in a call that holds Python's "
        "lock");
}

TEST_CASE("Flight record: what a worker says is taken within limits only", "[flight]") {
  const std::string text =
      R"({"where":"a\n.py:1","groups":[{"name":"0","calls":[
          {"number":20,"op":"all_reduce","of":"[8] Float","open":false},
          {"number":21,"op":"all_reduce","of":"[8] Float","open":true}]}]})";
  CHECK(decode_flight_record(text).value() == at("a?.py:1", {kSumOf20, kSumOf21}));
  const auto refused = [](const std::string& bytes) {
    const auto record = decode_flight_record(bytes);
    return record ? "" : record.error().context;
  };
  CHECK(refused("[]") == "a flight record: it is not a JSON object");
  CHECK(refused("{}") == "a flight record: it has no groups");
  CHECK(refused(R"({"groups":[1]})") == "a flight record: a group is no object");
  CHECK(refused(R"({"groups":[{"calls":[{"number":-1}]}]})") ==
        "a flight record: a call has no number");
  CHECK(refused(R"({"groups":[{"calls":[{"number":2},{"number":2}]}]})") ==
        "a flight record: calls are in no order");
  CHECK(refused(std::string(kFlightBytesMax + 1, ' ')) == "a flight record: it is too long");
  std::string many;
  for (int i = 0; i < 65; ++i) many += std::string(i ? "," : "") + R"({"calls":[]})";
  CHECK(refused(R"({"groups":[)" + many + "]}") == "a flight record: it has too many groups");
}

TEST_CASE("Flight record: any bytes are explained or refused", "[flight]") {
  std::mt19937 random(7);
  const std::string good = R"({"where":"a","groups":[{"name":"0","calls":[)"
                           R"({"number":1,"op":"x","of":"y","open":true}]}]})";
  for (int turn = 0; turn < 5000; ++turn) {
    std::string text = good;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    fuzz::fuzz_flight(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  SUCCEED("nothing aborted");
}

}  // namespace
}  // namespace ddprun::agent
