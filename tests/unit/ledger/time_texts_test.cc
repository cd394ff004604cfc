#include <catch2/catch.hpp>
#include <random>

#include "common/ledger/place_ledger.h"
#include "common/ledger/time_parts.h"
#include "common/text/figures.h"
#include "tests/fuzz/ledger_fuzz.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

TEST_CASE("Time parts: their text is short, and a newer part is unknown time") {
  TimeParts parts;
  parts[TimePart::kRendezvous] = 12us;
  parts[TimePart::kOutside] = 3400us;
  CHECK(to_text(parts) == "12,,3400");
  CHECK(parse_time_parts("12,,3400") == parts);
  CHECK(parse_time_parts("") == TimeParts());
  const auto newer = parse_time_parts(",,,,,,,,,,,,,1,2,3");
  REQUIRE(newer);
  CHECK((*newer)[TimePart::kUnknown] == 4us);
  CHECK((*newer)[TimePart::kEnd] == 2us);
  for (const char* wrong : {"-1", "x", "1,2x", "99999999999999999999", "9999999999999999"}) {
    CHECK_FALSE(parse_time_parts(wrong));
  }
  // Parts of a newer ddprun together are no more than one may be; libFuzzer has found it.
  const std::string most = std::to_string(kTimeMax.count());
  const std::string unknown(static_cast<std::size_t>(TimePart::kUnknown), ',');
  CHECK(parse_time_parts(unknown + most));
  CHECK_FALSE(parse_time_parts(unknown + most + ",," + "1"));
}

TEST_CASE("Time bins: steps are spread over the time that they took, at any length of the run") {
  TimeBins bins;
  TimeParts half;
  half[TimePart::kForward] = 50ms;
  bins.add(0ms, 100ms, half);
  REQUIRE(bins.shares(0));
  CHECK((*bins.shares(0))[1] == Approx(0.5));
  for (auto t = 100ms; t < 100s; t += 100ms) bins.add(t, t + 100ms, half);
  CHECK(bins.size() <= TimeBins::kBinsMax);
  CHECK(bins.width() == 800ms);
  CHECK((*bins.shares(7s, 8s))[1] == Approx(0.5));
  CHECK_FALSE(bins.shares(200s, 201s));
  const auto read = parse_time_bins(to_text(bins));
  REQUIRE(read);
  CHECK((*read->shares(7s, 8s))[1] == Approx(0.5).margin(0.01));
}

TEST_CASE("Figures: two units of time at most, three digits that count") {
  CHECK(clock_text(6100) == "1:41:40");
  CHECK(clock_text(-1) == "0:00:00");
  CHECK(rate_text(1.384) == "1.38");
  CHECK(rate_text(12.48) == "12.5");
  CHECK(rate_text(230.4) == "230");
  CHECK(took_text(4ms) == "4 ms");
  CHECK(took_text(840ms) == "840 ms");
  CHECK(took_text(24600ms) == "24.6 s");
  CHECK(took_text(784s) == "13 min 4 s");
  CHECK(took_text(780s) == "13 min");
  CHECK(took_text(8040s) == "2 h 14 min");
  CHECK(grouped(5249) == "5,249");
  CHECK(grouped(-1234567) == "-1,234,567");
  CHECK(percent_text(0.932) == "93.2 %");
  CHECK(rank_time_text(5251s) == "5,251 rank-s");
  CHECK(rank_time_text(44640s) == "12.4 rank-h");
}

TEST_CASE("Ledger texts: any bytes are refused, or read as they would be written") {
  std::mt19937 random(7);
  const std::string signs = "0123456789,;:.-ABCz_x";
  for (int i = 0; i < 20'000; ++i) {
    std::string text = i % 3 == 0 ? "50000:" : "";
    for (unsigned n = random() % 40; n > 0; --n) text += signs[random() % signs.size()];
    fuzz::fuzz_ledger(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  SUCCEED("every promise of ledger_fuzz.cc held");
}

}  // namespace
}  // namespace ddprun
