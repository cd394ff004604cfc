#include "common/text/figures.h"

#include <catch2/catch.hpp>

namespace ddprun {
namespace {

TEST_CASE("Ranges: neighbours are joined, others are listed", "[text]") {
  CHECK(ranges_text({}).empty());
  CHECK(ranges_text({3}) == "3");
  CHECK(ranges_text({0, 1, 2, 5}) == "0-2, 5");
  CHECK(ranges_text({0, 2, 3, 7, 8, 9}) == "0, 2-3, 7-9");
}

}  // namespace
}  // namespace ddprun
