#include "launcher/options/help.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

TEST_CASE("Misplaced: a flag of ddprun behind PROGRAM that PROGRAM refuses is explained",
          "[misplaced]") {
  CHECK(misplaced_flag_hint("train", {"--epochs", "3", "--report"},
                            "train: unknown option --report") ==
        "hint: --report stands after train, so it is train's; ddprun's flags stand before PROGRAM");
  CHECK(misplaced_flag_hint("t.py", {"--max_restarts=3"},
                            "t.py: error: unrecognized arguments: --max_restarts=3")
            .starts_with("hint: --max_restarts stands after t.py"));
}

TEST_CASE("Misplaced: nothing is said of what PROGRAM did not complain about", "[misplaced]") {
  // PROGRAM has a --log-dir of its own, and failed of something else.
  CHECK(misplaced_flag_hint("train", {"--log-dir", "x"}, "ValueError: loss is NaN").empty());
  CHECK(misplaced_flag_hint("train", {"--report"}, "").empty());
  // Another flag, that only begins or ends like it.
  CHECK(misplaced_flag_hint("train", {"--report"}, "no such option: --report-every").empty());
  CHECK(misplaced_flag_hint("train", {"--report"}, "no such option: ---report").empty());
  // Flags that ddprun has not, those that only print, and what stands behind a "--".
  CHECK(misplaced_flag_hint("train", {"--epochs=x"}, "bad --epochs").empty());
  CHECK(misplaced_flag_hint("train", {"--help"}, "unknown option --help").empty());
  CHECK(misplaced_flag_hint("train", {"-v", "report"}, "unknown -v report").empty());
  CHECK(misplaced_flag_hint("train", {"--", "--report"}, "unknown option --report").empty());
}

TEST_CASE("A bare IPv6 address in a URL: the hint shows the brackets", "[misplaced]") {
  const std::string message = "ValueError: Port could not be cast to integer value as ':1:29500'";
  CHECK(bare_ipv6_hint(message).find("tcp://[$MASTER_ADDR]:$MASTER_PORT") != std::string::npos);
  CHECK(bare_ipv6_hint("ValueError: Port could not be cast to integer value as 'x'").empty());
}

}  // namespace
}  // namespace ddprun::launcher
