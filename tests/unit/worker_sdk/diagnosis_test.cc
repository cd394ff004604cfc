#include "worker_sdk/transport/diagnosis.h"

#include <catch2/catch.hpp>

namespace ddprun::worker_sdk {
namespace {

const Roster kRoster{.rank = 0, .hosts = {"a", "b", "c", "d"}};
const Signature kReduce{.kind = OpKind::kAllReduce, .type = DataType::f32, .count = 10};

Statement statement(Cause cause, int suspect = -1) {
  return {.what = kReduce, .number = 3, .cause = cause, .suspect = suspect};
}

// "timed out/2: text"
std::string verdict(const Statement& mine, const std::map<int, Statement>& others) {
  const Diagnosis v = diagnose(kRoster, mine, others);
  return make_error_code(v.kind).message() + "/" + std::to_string(v.peer) + ": " + v.text;
}

const Statement kLost = statement(Cause::kLost);
const Statement kLate = statement(Cause::kTimedOut);

TEST_CASE("Diagnosis: the silent rank is the dead one, whoever was suspected", "[diagnosis]") {
  const std::string want = "peer lost/2: lost rank 2 on c";
  CHECK(verdict(kLost, {{1, kLost}, {3, kLost}}) == want);
  CHECK(verdict(statement(Cause::kLost, 1), {{1, kLost}, {3, kLost}}) == want);
  CHECK(verdict(statement(Cause::kLost, 2), {{1, kLost}}) == want);
  CHECK(verdict(kLost, {{1, kLost}}) == "peer lost/2: lost ranks 2 (c), 3 (d)");
}

TEST_CASE("Diagnosis: from rank to rank that lost one, the first silent one is to blame",
          "[diagnosis]") {
  const auto lost = [](int r) { return statement(Cause::kLost, r); };
  CHECK(silent_suspect(kRoster, lost(2), {}) == 2);
  CHECK(silent_suspect(kRoster, lost(1), {{1, lost(3)}}) == 3);
  CHECK(silent_suspect(kRoster, lost(1), {{1, lost(3)}, {3, lost(2)}}) == 2);
  CHECK(silent_suspect(kRoster, kLost, {}) == -1);
  CHECK(silent_suspect(kRoster, lost(1), {{1, kLate}}) == -1);
  CHECK(silent_suspect(kRoster, lost(1), {{1, lost(0)}}) == -1);
  CHECK(silent_suspect(kRoster, lost(1), {{1, lost(2)}, {2, lost(1)}}) == -1);
  CHECK(silent_suspect(kRoster, kLost, {{1, kLate}, {3, lost(2)}}) == 2);
  CHECK(silent_suspect(kRoster, kLate, {{1, kLost}, {3, lost(2)}}) == -1);
  // Rank 3 may only be busy: no rank has lost it.
  CHECK(verdict(lost(1), {{1, lost(2)}}) == "peer lost/2: lost rank 2 on c");
}

TEST_CASE("Diagnosis: if anyone timed out, the silent rank is late", "[diagnosis]") {
  const std::string want = "timed out/2: no sign of rank 2 on c";
  CHECK(verdict(kLate, {{1, kLost}, {3, kLost}}) == want);
  CHECK(verdict(statement(Cause::kLost, 1), {{1, kLate}, {3, kLost}}) == want);
}

TEST_CASE("Diagnosis: who calls after this rank has given up was missing", "[diagnosis]") {
  Statement after = statement(Cause::kLost, 0);
  after.is_late = true;
  CHECK(verdict(kLate, {{1, kLate}, {2, after}, {3, kLost}}) ==
        "timed out/2: no sign of rank 2 on c");
  CHECK(diagnose(kRoster, kLate, {{1, after}, {2, after}, {3, kLost}}).missing ==
        std::vector<int>{1, 2});
  CHECK(verdict(kLate, {{1, kLost}, {2, kLost}, {3, kLost}}) ==
        "timed out/-1: all ranks wait for one another");
}

TEST_CASE("Diagnosis: who comes last learns who had given up", "[diagnosis]") {
  CHECK(verdict(kLost, {{1, kLost}, {2, kLate}, {3, kLost}}) ==
        "timed out/2: rank 2 on c had given up on all_reduce #3 (f32 x 10, sum)");
}

TEST_CASE("Diagnosis: an abort explains everything else", "[diagnosis]") {
  CHECK(verdict(kLost, {{1, kLate}, {2, statement(Cause::kAborted)}}) ==
        "peer lost/2: rank 2 on c called abort()");
}

TEST_CASE("Diagnosis: whoever is odd says so of itself", "[diagnosis]") {
  Statement other = kLate, third = kLate;
  other.what.count = 11;
  third.what.count = 12;
  const auto odd = [&](const std::map<int, Statement>& others) {
    return diagnose(kRoster, kLate, others).peer;
  };
  CHECK(odd({{1, other}, {2, other}, {3, other}}) == 0);
  CHECK(odd({{1, other}, {2, other}}) == 0);
  CHECK(odd({{1, other}}) == 1);  // One word against another.
  CHECK(odd({{1, other}, {2, third}}) == 1);
  CHECK(odd({{1, kLate}, {2, other}, {3, other}}) == 2);
}

TEST_CASE("Diagnosis: another call under the same number is a mismatch", "[diagnosis]") {
  Statement other = kLate;
  other.what.count = 11;
  CHECK(
      verdict(kLate, {{1, kLate}, {2, other}, {3, kLate}}) ==
      "ranks disagree/2: rank 2 on c called all_reduce #3 (f32 x 11, sum) where rank 0 on a called "
      "all_reduce #3 (f32 x 10, sum)");
  other.number = 2;  // It has not come so far.
  CHECK(diagnose(kRoster, kLate, {{1, kLate}, {2, other}}).kind == ErrorKind::timed_out);
}

TEST_CASE("Diagnosis: a message is only compared with its other end", "[diagnosis]") {
  Statement send{.what = {.kind = OpKind::kSend, .type = DataType::f32, .rank = 1, .count = 5},
                 .number = 9};
  Statement recv{.what = {.kind = OpKind::kRecv, .type = DataType::f32, .rank = 0, .count = 6},
                 .number = 4};
  CHECK(diagnose(kRoster, send, {{1, recv}}).kind == ErrorKind::mismatch);
  CHECK(diagnose(kRoster, send, {{2, recv}}).kind == ErrorKind::peer_lost);
  recv.what.count = 5;
  CHECK(diagnose(kRoster, send, {{1, recv}}).kind == ErrorKind::peer_lost);
  CHECK(diagnose(kRoster, send, {{1, kLost}}).kind == ErrorKind::peer_lost);
}

TEST_CASE("Diagnosis: statements survive the store, and other text is none", "[diagnosis]") {
  Statement s = statement(Cause::kAborted, 3);
  s.what.rank = 2;
  s.what.count = ~std::uint64_t{0} >> 1;
  const auto decoded = decode_statement(encode(s));
  REQUIRE(decoded);
  CHECK(decoded->what == s.what);
  CHECK(decoded->number == s.number);
  CHECK(decoded->cause == s.cause);
  CHECK(decoded->suspect == s.suspect);
  const std::string text = encode(s);
  for (std::size_t n = 0; n < text.size(); ++n) CHECK_FALSE(decode_statement(text.substr(0, n)));
  CHECK(decode_statement("1 0 0 0 0 0 0 0 0 0 "));
  for (const char* bad :
       {"0 0 0 0 0 0 0 0 0 0 ", "13 0 0 0 0 0 0 0 0 0 ", "1 99 0 0 0 0 0 0 0 0 ",
        "1 0 9 0 0 0 0 0 0 0 ", "1 0 0 0 -1 0 0 0 0 0 ", "1 0 0 0 0 0 -1 0 0 0 ",
        "1 0 0 0 0 0 0 3 0 0 ", "1 0 0 0 0 0 0 0 0 2 ", "1 0 0 0 0 0 0 0 0 0 x"}) {
    CAPTURE(bad);
    CHECK_FALSE(decode_statement(bad));
  }
}

}  // namespace
}  // namespace ddprun::worker_sdk
