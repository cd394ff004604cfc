#include "common/ports.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

namespace ddprun {
namespace {

TEST_CASE("Port range: two ports, the first not above the last", "[ports]") {
  CHECK(port_range_of("29500-29599") == PortRange{29500, 29599});
  CHECK(port_range_of("1-65535")->size() == 65'535);
  CHECK(port_range_of("7-7")->size() == 1);
  for (const char* none : {"", "-", "7", "7-", "-7", "0-7", "7-6", "7-65536", "7-8-9", "a-b",
                           " 7-8", "7-8 ", "7--8", "+7-8", "7 -8", "99999999999-99999999999"}) {
    INFO(none);
    CHECK(port_range_of(none) == std::nullopt);
  }
}

TEST_CASE("Port range: every port in turn, whichever is first", "[ports]") {
  const PortRange ports{100, 103};
  for (const std::uint64_t start : {std::uint64_t{0}, std::uint64_t{3}, ~std::uint64_t{0} - 1}) {
    std::set<int> seen;
    for (int i = 0; i < ports.size(); ++i) seen.insert(ports.port(start, i));
    CHECK(seen == std::set<int>{100, 101, 102, 103});
  }
  CHECK(ports.port(1, 0) == 101);
  CHECK(PortRange{}.is_any());
  CHECK(ports.text() == "100-103");
}

TEST_CASE("Port range: damaged texts are ranges or refused", "[ports][fuzz]") {
  std::mt19937 random(4);
  const std::string letters = "0123456789--+ x";
  for (int round = 0; round < 20'000; ++round) {
    std::string text = round % 2 ? "29500-29599" : "";
    for (unsigned n = random() % 6; n > 0; --n) {
      text.insert(random() % (text.size() + 1), 1, letters[random() % letters.size()]);
    }
    const auto ports = port_range_of(text);
    if (ports) CHECK((ports->first >= 1 && ports->first <= ports->last));
  }
}

}  // namespace
}  // namespace ddprun
