#include "launcher/facts.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

TEST_CASE("Facts: this machine has a name, and no loopback among its addresses", "[facts]") {
  const Facts facts = gather_facts({});
  CHECK_FALSE(facts.host_name.empty());
  CHECK_FALSE(facts.token_in_environment);
  CHECK(facts.token_file.empty());
  for (const std::string& address : facts.own_addresses) {
    INFO(address);
    CHECK_FALSE(address.starts_with("127."));
    CHECK(address != "::1");
    CHECK_FALSE(address.starts_with("fe80:"));
  }
}

TEST_CASE("Facts: the token's whereabouts come from the environment", "[facts]") {
  const Facts facts = gather_facts({{"DDPRUN_TOKEN", "c0ffee"}, {"DDPRUN_TOKEN_FILE", "/t"}});
  CHECK(facts.token_in_environment);
  CHECK(facts.token_file == "/t");
  CHECK_FALSE(gather_facts({{"DDPRUN_TOKEN", ""}}).token_in_environment);
}

}  // namespace
}  // namespace ddprun::launcher
