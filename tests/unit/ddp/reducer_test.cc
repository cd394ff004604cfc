// The reducer's bookkeeping: what is released when, and its errors for callers that break the
// order.

#include "worker_sdk/ddp/reducer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using Catch::Matchers::Contains;
using ddprun::worker_sdk::Reducer;
using Buckets = std::vector<std::vector<std::size_t>>;

// "a" .. in order; what each mark released, as text: "-" or "0" or "01".
std::string trace(Reducer& reducer, const std::vector<std::size_t>& marks) {
  std::string text;
  for (const std::size_t p : marks) {
    const auto released = reducer.mark_ready(p);
    REQUIRE(released.has_value());
    if (!text.empty()) text += ' ';
    for (std::size_t b = released->first; b < released->last; ++b) text += std::to_string(b);
    if (released->first == released->last) text += '-';
  }
  return text;
}

}  // namespace

TEST_CASE("Reducer: a bucket is released with its last gradient") {
  Reducer reducer({{2, 3}, {0, 1}}, {"a", "b", "c", "d"});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {3, 2, 1, 0}) == "- 0 - 1");
  CHECK(reducer.finish().has_value());
}

TEST_CASE("Reducer: a bucket that is full early waits for those before it") {
  Reducer reducer({{2, 3}, {1}, {0}}, {"a", "b", "c", "d"});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {0, 3, 1, 2}) == "- - - 012");
  CHECK(reducer.finish().has_value());
}

TEST_CASE("Reducer: each pass starts afresh") {
  Reducer reducer({{1}, {0}}, {"a", "b"});
  for (int pass = 0; pass < 3; ++pass) {
    REQUIRE(reducer.begin().has_value());
    CHECK(trace(reducer, {1, 0}) == "0 1");
    REQUIRE(reducer.finish().has_value());
  }
}

TEST_CASE("Reducer: a second mark is refused by name and changes nothing") {
  Reducer reducer({{1}, {0}}, {"conv.weight", "fc.weight"});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {0}) == "-");
  const auto again = reducer.mark_ready(0);
  REQUIRE(again.has_error());
  CHECK_THAT(again.error().context, Contains("conv.weight") && Contains("twice"));
  CHECK(trace(reducer, {1}) == "01");
  CHECK(reducer.finish().has_value());
}

TEST_CASE("Reducer: a pass that ends early names what is missing, and the next one works") {
  Reducer reducer({{2}, {1}, {0}}, {"a", "b", "c"});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {2}) == "0");
  const auto finished = reducer.finish();
  REQUIRE(finished.has_error());
  CHECK_THAT(finished.error().context, Contains("2 of 3") && Contains("a, b"));
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {2, 1, 0}) == "0 1 2");
  CHECK(reducer.finish().has_value());
}

TEST_CASE("Reducer: of many missing parameters ten are named") {
  std::vector<std::size_t> all(25);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::string> names;
  for (const std::size_t p : all) names.push_back("p" + std::to_string(p));
  Reducer reducer({all}, names);
  REQUIRE(reducer.begin().has_value());
  const auto finished = reducer.finish();
  REQUIRE(finished.has_error());
  CHECK_THAT(finished.error().context, Contains("p0, p1") && Contains("p9 and 15 more"));
}

TEST_CASE("Reducer: calls out of order are refused") {
  Reducer reducer({{0}}, {"a"});
  CHECK_THAT(reducer.mark_ready(0).error().context, Contains("outside begin_backward()"));
  CHECK_THAT(reducer.finish().error().context, Contains("without begin_backward()"));
  REQUIRE(reducer.begin().has_value());
  CHECK_THAT(reducer.begin().error().context, Contains("twice") && Contains("not yet ready: a"));
  CHECK_THAT(reducer.mark_ready(7).error().context, Contains("no parameter 7"));
}

TEST_CASE("Reducer: the first pass holds all buckets until its last gradient, later ones do not") {
  Reducer reducer({{2, 3}, {0, 1}}, {"a", "b", "c", "d"}, {.hold_first = true});
  REQUIRE(reducer.begin().has_value());
  CHECK_FALSE(reducer.has_order());
  CHECK(trace(reducer, {1, 3, 2, 0}) == "- - - 01");
  REQUIRE(reducer.finish().has_value());
  CHECK(reducer.has_order());
  CHECK(reducer.arrival() == std::vector<std::size_t>{1, 3, 2, 0});
  reducer.regroup({{1, 3}, {2, 0}});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {1, 3, 2, 0}) == "- 0 - 1");
  CHECK(reducer.finish().has_value());
  CHECK(reducer.arrival() == std::vector<std::size_t>{1, 3, 2, 0});
}

TEST_CASE("Reducer: a first pass that fails on this rank was the first, as on the others") {
  Reducer reducer({{1}, {0}}, {"a", "b"}, {.hold_first = true});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {0}) == "-");
  REQUIRE(reducer.finish().has_error());
  CHECK(reducer.left_over().first == 0);  // What the others wait for.
  CHECK(reducer.left_over().last == 2);
  CHECK(reducer.has_order());  // All rebuild with the next pass.
  CHECK(reducer.arrival() == std::vector<std::size_t>{0, 1});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {1, 0}) == "0 1");
  REQUIRE(reducer.finish().has_value());
}

TEST_CASE("Reducer: unused parameters named before the pass are not waited for") {
  Reducer reducer({{3}, {2}, {0, 1}}, {"a", "b", "c", "d"}, {.find_unused = true});
  const auto released = reducer.begin(std::vector<std::size_t>{3, 1});
  REQUIRE(released.has_value());
  CHECK(released->last == 1);
  CHECK(trace(reducer, {2, 0}) == "1 2");
  CHECK(reducer.finish().has_value());
  CHECK(reducer.marked(0));
  CHECK_FALSE(reducer.marked(1));
}

TEST_CASE("Reducer: unused parameters that nobody named are found when the pass ends") {
  Reducer reducer({{3}, {2}, {0, 1}}, {"a", "b", "c", "d"}, {.find_unused = true});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {3, 1}) == "0 -");
  const auto rest = reducer.finish();
  REQUIRE(rest.has_value());
  CHECK(rest->first == 1);
  CHECK(rest->last == 3);
  CHECK_FALSE(reducer.marked(2));
}

TEST_CASE("Reducer: what contradicts the named unused parameters is refused") {
  Reducer strict({{0}}, {"a"});
  CHECK_THAT(strict.begin(std::vector<std::size_t>{0}).error().context,
             Contains("find_unused is off"));
  Reducer reducer({{0}}, {"a"}, {.find_unused = true});
  CHECK_THAT(reducer.begin(std::vector<std::size_t>{7}).error().context,
             Contains("no parameter 7"));
  REQUIRE(reducer.begin(std::vector<std::size_t>{0}).has_value());
  CHECK_THAT(reducer.mark_ready(0).error().context, Contains("a was named as unused"));
}

TEST_CASE("Reducer: a static graph repeats the marks of its first pass") {
  Reducer reducer({{2}, {1}, {0}}, {"a", "b", "c"}, {.hold_first = true, .static_graph = true});
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {2, 1, 2}) == "- - -");  // c twice, a never.
  const auto all = reducer.finish();
  REQUIRE(all.has_value());
  CHECK(all->last == 3);
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {2, 1, 2}) == "- - 012");
  CHECK_THAT(reducer.mark_ready(1).error().context,
             Contains("b was marked ready more often") && Contains("(1 times)"));
  CHECK(reducer.finish().has_value());
  REQUIRE(reducer.begin().has_value());
  CHECK(trace(reducer, {2, 1}) == "- -");
  CHECK_THAT(reducer.finish().error().context, Contains("fewer") && Contains(": c."));
}

TEST_CASE("Reducer: whatever the order of arrival, buckets come once each and in order") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t parameters = 1 + random() % 20;
    Buckets buckets(1);
    for (std::size_t p = 0; p < parameters; ++p) {
      if (!buckets.back().empty() && random() % 3 == 0) buckets.emplace_back();
      buckets.back().push_back(p);
    }
    std::vector<std::size_t> arrival(parameters);
    std::iota(arrival.begin(), arrival.end(), std::size_t{0});
    std::shuffle(arrival.begin(), arrival.end(), random);

    Reducer reducer(buckets, std::vector<std::string>(parameters, "p"));
    REQUIRE(reducer.begin().has_value());
    std::size_t next = 0;
    std::vector<bool> arrived(parameters, false);
    for (const std::size_t p : arrival) {
      arrived[p] = true;
      const auto released = reducer.mark_ready(p);
      REQUIRE(released.has_value());
      REQUIRE(released->first == next);
      next = released->last;
      for (std::size_t b = 0; b < next; ++b) {
        for (const std::size_t member : buckets[b]) REQUIRE(arrived[member]);
      }
    }
    REQUIRE(next == buckets.size());
    REQUIRE(reducer.finish().has_value());
  }
}
