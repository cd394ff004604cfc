#include "common/text/words.h"

#include <catch2/catch.hpp>
#include <string>

namespace ddprun {
namespace {

TEST_CASE("Host names: what only this machine reaches", "[host_text]") {
  const std::string host =
      GENERATE(as<std::string>(), "localhost", "LocalHost", "127.0.0.1", "127.255.0.3", "::1");
  CHECK(is_loopback(host));
}

TEST_CASE("Host names: what others reach, or may reach", "[host_text]") {
  const std::string host =
      GENERATE(as<std::string>(), "", "0.0.0.0", "::", "10.127.0.1", "128.0.0.1", "127.example.org",
               "localhost.example.org", "fe80::1");
  CHECK_FALSE(is_loopback(host));
}

TEST_CASE("Host names: an address is told from a name", "[host_text]") {
  CHECK(is_numeric("10.0.0.7"));
  CHECK(is_numeric("fe80::a"));
  CHECK_FALSE(is_numeric("node7"));
  CHECK_FALSE(is_numeric("10.cluster"));
}

}  // namespace
}  // namespace ddprun
