#include "launcher/plan/gather_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <list>

namespace ddprun::launcher {
namespace {

using Texts = std::vector<std::string>;

// A machine's interfaces as getifaddrs() lists them.
class Interfaces {
 public:
  void add(const char* name, const char* address, unsigned flags = IFF_UP) {
    sockaddr_storage& storage = addresses_.emplace_back();
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    if (::inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
    } else {
      REQUIRE(::inet_pton(AF_INET6, address, &v6->sin6_addr) == 1);
      v6->sin6_family = AF_INET6;
    }
    add_entry(name, reinterpret_cast<sockaddr*>(&storage), flags);
  }

  // As of an interface without an address, or with one of a family like AF_PACKET.
  void add_entry(const char* name, sockaddr* address, unsigned flags) {
    ifaddrs& entry = entries_.emplace_back();
    entry.ifa_name = const_cast<char*>(name);
    entry.ifa_addr = address;
    entry.ifa_flags = flags;
    if (entries_.size() > 1) std::prev(entries_.end(), 2)->ifa_next = &entry;
  }

  const ifaddrs* list() const { return entries_.empty() ? nullptr : &entries_.front(); }

 private:
  std::list<ifaddrs> entries_;
  std::list<sockaddr_storage> addresses_;
};

TEST_CASE("Facts: of all interfaces, those that others may reach count, the best first",
          "[facts]") {
  Interfaces machine;
  sockaddr packet{.sa_family = AF_PACKET, .sa_data = {}};
  machine.add("lo", "127.0.0.1", IFF_UP | IFF_LOOPBACK);
  machine.add("lo", "::1", IFF_UP | IFF_LOOPBACK);
  machine.add_entry("eth0", &packet, IFF_UP);
  machine.add_entry("tun0", nullptr, IFF_UP);
  machine.add("docker0", "172.17.0.1");
  machine.add("br-5f0", "fd01::1");
  machine.add("eth0", "2001:db8::7");
  machine.add("eth0", "fe80::1");
  machine.add("eth1", "10.0.0.9", 0);  // Down.
  machine.add("eth0", "10.0.0.7");
  machine.add("ib0", "10.1.0.7");
  CHECK(addresses_of(machine.list()) ==
        Texts{"10.0.0.7", "10.1.0.7", "2001:db8::7", "172.17.0.1", "fd01::1"});
}

TEST_CASE("Facts: a machine without any interface has no address", "[facts]") {
  CHECK(addresses_of(nullptr).empty());
  Interfaces only_loopback;
  only_loopback.add("lo", "127.0.0.1", IFF_UP | IFF_LOOPBACK);
  CHECK(addresses_of(only_loopback.list()).empty());
}

TEST_CASE("Facts: this machine has a name, and no loopback among its addresses", "[facts]") {
  const MachineFacts facts = gather_facts({});
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
  const MachineFacts facts =
      gather_facts({{"DDPRUN_TOKEN", "c0ffee"}, {"DDPRUN_TOKEN_FILE", "/t"}});
  CHECK(facts.token_in_environment);
  CHECK(facts.token_file == "/t");
  CHECK_FALSE(gather_facts({{"DDPRUN_TOKEN", ""}}).token_in_environment);
}

}  // namespace
}  // namespace ddprun::launcher
