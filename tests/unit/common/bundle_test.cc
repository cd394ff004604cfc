#include "common/bundle.h"

#include <catch2/catch.hpp>
#include <random>

#include "common/checksum.h"
#include "tests/fuzz/common/bundle_fuzz.h"
#include "tests/support/damage.h"

namespace ddprun {
namespace {

using Catch::Contains;
using Catch::EndsWith;

Bundle example() {
  return {.why = "std::runtime_error: bad sample",
          .who = "rank 2 on node7",
          .work = "step 3, shard 7: samples 41, 88",
          .step = 3,
          .shard = 7,
          .shards = 12,
          .world_size = 4,
          .hash = "00000000000004be",
          .skip = "step 2, shard 1",
          .run_id = "run7",
          .release = "0.1.0",
          .system = "Linux 6.1 x86_64",
          .command = {"python3", "-u", "train.py"},
          .folder = "/home/a",
          .environment = {"OMP_NUM_THREADS=4"},
          .items = {{"weights", 800}, {"none", 0}, {"optimizer", 77}}};
}

std::uint64_t size_of(const std::string& start, const Bundle& bundle) {
  return start.size() + bundle.item_bytes() + kChecksumBytes;
}

std::string why_refused(const Bundle& bundle, std::uint64_t more = 0) {
  const auto start = encode_start(bundle);
  if (!start) return start.error().context;
  const auto decoded = decode_start(*start, size_of(*start, bundle) + more);
  return decoded ? "" : decoded.error().context;
}

TEST_CASE("Bundle: what is written is read") {
  const Bundle bundle = example();
  const std::string start = encode_start(bundle).value();
  const auto decoded = decode_start(start, size_of(start, bundle));
  REQUIRE(decoded);
  CHECK(decoded->bundle == bundle);
  CHECK(decoded->items_at == start.size());
}

TEST_CASE("Bundle: what cannot be is refused") {
  CHECK(why_refused(example()).empty());
  CHECK_THAT(why_refused(example(), 1), Contains("another size"));
  CHECK_THAT(why_refused(example(), static_cast<std::uint64_t>(-1)), Contains("cut off in"));
  Bundle wrong = example();
  wrong.step = -1;
  CHECK_THAT(why_refused(wrong), Contains("step"));
  wrong = example();
  wrong.shard = 12;
  CHECK_THAT(why_refused(wrong), EndsWith("could not be read: it has shard 12 of 12"));
  wrong = example();
  wrong.command.back() = std::string(70'000, 'x');
  CHECK_THAT(why_refused(wrong), Contains("could not be read"));
  wrong = example();
  wrong.hash = "4be";
  CHECK_THAT(why_refused(wrong), Contains("hash"));
  const std::string start = encode_start(example()).value();
  CHECK_THAT(decode_start("", 0).error().context, Contains("no bundle"));
  CHECK_THAT(decode_start(start.substr(0, 20), 20).error().context, Contains("cut off"));
  // Sizes that only fit because their sum does not fit into 64 bits.
  wrong = example();
  wrong.items.assign(4096, {"x", std::uint64_t{1} << 52});
  CHECK_THAT(why_refused(wrong), Contains("cut off in"));
}

TEST_CASE("Bundle: names of regular bundles sort by step, and are not those of failures") {
  CHECK(regular_name("a b/c", 100) == "a_b_c-regular-0000000100.bundle");
  CHECK(regular_name("run7", 9) < regular_name("run7", 10));
  CHECK(regular_name("run7", 999) < regular_name("run7", 1000));
  CHECK(failed_prefix("a b/c") == "a_b_c-step-");
}

TEST_CASE("Bundle: those that are left reach from the first step to the last") {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; step <= 10'000; step += 10) {
    steps.push_back(step);
    if (steps.size() <= 16) continue;
    const std::size_t gone = most_superfluous(steps);
    REQUIRE(gone > 0);
    REQUIRE(gone + 1 < steps.size());
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(gone));
  }
  CHECK(steps.front() == 0);
  CHECK(steps.back() == 10'000);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {  // The older, the farther apart.
    CHECK(steps[i + 1] - steps[i] <= 20 + (10'000 - steps[i]) * 3 / 4);
  }
  CHECK(steps[steps.size() - 2] >= 9'970);
}

TEST_CASE("Walk: what a job writes is read, and nothing else") {
  const Walk walk{.state = Walk::State::kFailed,
                  .step = 12,
                  .shard = 3,
                  .work = "step 12, shard 3",
                  .found = "the loss is 812",
                  .not_finite = 7};
  CHECK(decode_walk(encode_walk(walk)).value() == walk);
  CHECK_FALSE(decode_walk("").has_value());
  CHECK_FALSE(decode_walk("[]").has_value());
  CHECK_FALSE(decode_walk(std::string(kWalkMax + 1, ' ')).has_value());
  Walk second = walk;
  second.found = "a line\n" + std::string(500'000, 'x');
  CHECK(decode_walk(encode_walk(second)).value().found.starts_with("a line x"));
}

TEST_CASE("Bundle: a head stays below a mebibyte, if need be without the environment") {
  Bundle bundle = example();
  bundle.environment.assign(300, "PYTHONPATH=" + std::string(4000, 'x'));
  const std::string start = encode_start(bundle).value();
  CHECK(start.size() < kBundleHeadMax);
  CHECK(decode_start(start, size_of(start, bundle)).value().bundle.environment.empty());
  bundle.why = std::string(1 << 21, 'y');  // Is cut.
  CHECK(encode_start(bundle));
  bundle.items.assign(30'000, {std::string(40, 'n'), 1});
  CHECK_FALSE(encode_start(bundle));
}

std::string compared(Bundle::Cause cause, const Replayed& replayed, const std::string& hash = "") {
  Bundle bundle = example();
  bundle.cause = cause;
  bundle.hash = hash;
  const ReplayVerdict verdict = compare(bundle, replayed);
  CHECK_THAT(verdict.text, Contains("replay of step 3, shard 7: "));
  const bool has_rest = verdict.text.find("machine") != std::string::npos;
  CHECK(has_rest != verdict.is_same);
  return std::string(verdict.is_same ? "same: " : "other: ") + verdict.text.substr(27);
}

TEST_CASE("Bundle: a replay is compared with the text, the hash or the end of the process") {
  using enum Bundle::Cause;
  const std::string work = "step 3, shard 7", text = "std::runtime_error: bad sample";
  const std::string there = "in the run, on rank 2 on node7: " + text;
  CHECK(compared(kFailure, {.work = work, .found = text}) ==
        "same: " + text + ", the same as in the run, on rank 2 on node7");
  CHECK_THAT(compared(kFailure, {.work = work}),
             Contains("other: no failure; " + there + ". The shard alone does not fail here"));
  CHECK_THAT(compared(kFailure, {.work = work, .found = "another"}),
             Contains("other: another; " + there) && Contains("They differ"));
  CHECK_THAT(compared(kFailure, {.work = work, .found = text, .hash = "b"}, "a"),
             Contains("other: " + text + " (hash b); " + there + " (hash a). They differ"));
  CHECK_THAT(compared(kCrash, {.work = work, .found = text, .crashed = true}), Contains("same: "));
  CHECK_THAT(compared(kCrash, {.work = work, .found = "exited with 7", .crashed = true}),
             Contains("other: "));
  CHECK_THAT(compared(kCrash, {.work = work}), Contains("other: no failure; "));
  CHECK_THAT(compared(kRequest, {.work = work, .hash = "a"}, "a"),
             Contains("same: no failure (hash a), the same as in the run"));
  CHECK_THAT(compared(kRequest, {.work = work, .hash = "b"}, "a"), Contains("other: "));
  CHECK_THAT(compared(kRequest, {.work = work, .hash = "b"}),
             Contains("same: no failure (hash b); the bundle has no hash to compare with"));
}

TEST_CASE("Bundle: damaged ones are refused, or are others that can be") {
  std::mt19937 random(11);
  const std::string whole = encode_start(example()).value();
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = test::damaged(whole.substr(i % 2 ? 16 : 0), random);
    fuzz::fuzz_bundle(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
}  // namespace ddprun
