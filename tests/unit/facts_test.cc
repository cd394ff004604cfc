#include "launcher/facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

// The IPv4 addresses by which others may reach this machine: of every interface that is up.
std::vector<std::string> reachable_ipv4() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  REQUIRE(::getifaddrs(&list) == 0);
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const bool up = (one->ifa_flags & IFF_UP) && !(one->ifa_flags & IFF_LOOPBACK);
    if (!up || !one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    found.emplace_back(text);
  }
  ::freeifaddrs(list);
  return found;
}

TEST_CASE("Facts: this machine has a name, and no loopback among its addresses", "[facts]") {
  const Facts facts = gather_facts({});
  CHECK_FALSE(facts.host_name.empty());
  CHECK_FALSE(facts.token_in_environment);
  CHECK(facts.token_file.empty());
  for (const std::string& address : reachable_ipv4()) {
    INFO(address);
    const auto& own = facts.own_addresses;
    CHECK((address.starts_with("127.") || std::find(own.begin(), own.end(), address) != own.end()));
  }
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
