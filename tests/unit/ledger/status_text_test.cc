#include "agent/verdict/verdict_picture.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

StatusFacts busy() {
  return {.run_id = "job7",
          .world_size = 64,
          .nodes = 8,
          .elapsed = 6100s,
          .step = 8634,
          .steps_per_s = 1.384,
          .late_rank = 19,
          .late_ms = 86.4,
          .restart_count = 1,
          .max_restarts = 3};
}

TEST_CASE("Status line: all that is known, in one line", "[status_text]") {
  CHECK(status_text(busy(), {.columns = 120, .colour = false, .utf8 = true}) ==
        "● job7  64 ranks on 8 nodes  1:41:40  step 8,634  1.38 steps/s  late: rank 19, 86.4 ms  "
        "restart 1 of 3");
  CHECK(status_text({.run_id = "none", .world_size = 1, .elapsed = 12s},
                    {.columns = 80, .colour = true, .utf8 = false}) ==
        "\x1b[34m*\x1b[0m 1 rank  0:00:12");
}

TEST_CASE("Status line: it never wraps; what is needed least goes first", "[status_text]") {
  CHECK(status_text(busy(), {.columns = 80, .colour = false, .utf8 = true}) ==
        "● job7  64 ranks on 8 nodes  1:41:40  step 8,634  late: rank 19, 86.4 ms");
  CHECK(status_text(busy(), {.columns = 30, .colour = false, .utf8 = false}) ==
        "* job7  1:41:40  step 8,634");
  StatusFacts wide = busy();
  wide.run_id = std::string(300, 'x');
  for (int columns = 0; columns < 130; ++columns) {
    const std::string text =
        status_text(wide, {.columns = columns, .colour = false, .utf8 = false});
    CHECK(std::ssize(text) <= std::max(columns - 1, 1));
    CHECK((columns < 15 || text.find("step 8,634") != std::string::npos));
  }
}

TEST_CASE("Status line: a run's name is not obeyed by the terminal", "[status_text]") {
  StatusFacts odd = busy();
  odd.run_id = "a\x1b[2J\n\xc2\x9b[31m";
  const std::string text = status_text(odd, {.columns = 120, .colour = false, .utf8 = false});
  CHECK(text.find_first_of("\x1b\n") == std::string::npos);
  CHECK(text.find("\xc2\x9b") == std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
