// Over which network data goes, from what nodes report of theirs.

#include "common/data_network.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <catch2/catch.hpp>

#include "common/system/own_networks.h"

namespace ddprun {
namespace {

using Networks = std::vector<NodeNetwork>;

NodeNetwork slow_net(int node) {
  return {"eth0", "10.0.0." + std::to_string(node), "10.0.0.0/24", 1'000};
}
NodeNetwork fast_net(int node) {
  return {"ib0", "10.1.0." + std::to_string(node), "10.1.0.0/24", 100'000};
}

// Two nodes whose names lead to the slow network, with these others.
std::vector<NetworksOfNode> nodes(Networks of_a, Networks of_b) {
  of_a.insert(of_a.begin(), slow_net(1));
  of_b.insert(of_b.begin(), slow_net(2));
  return {{"a", "10.0.0.1", std::move(of_a)}, {"b", "10.0.0.2", std::move(of_b)}};
}

TEST_CASE("DataNetwork: one that all have and that is three times as fast is used", "[network]") {
  const DataNetwork chosen = choose_data_network(nodes({fast_net(1)}, {fast_net(2)}));
  REQUIRE(chosen.places.size() == 2);
  CHECK(chosen.places[0] == DataPlace{"ib0", "10.1.0.1", "ib0"});
  CHECK(chosen.places[1] == DataPlace{"ib0", "10.1.0.2", "ib0"});
  CHECK(chosen.why ==
        "data goes over ib0 10.1.0.0/24 (100 Gb/s), not eth0 (1.00 Gb/s), to which names lead; "
        "DDPRUN_SOCKET_IFNAME=eth0 keeps it there");
  CHECK_FALSE(chosen.warns);
}

TEST_CASE("DataNetwork: what is not much faster, or unknown, is left alone", "[network]") {
  const auto is_unchanged = [](const std::vector<NetworksOfNode>& nodes) {
    const DataNetwork chosen = choose_data_network(nodes);
    return chosen.places.empty() && chosen.why.empty();
  };
  const auto with_speed = [](int node, std::int64_t mbit) {
    NodeNetwork one = fast_net(node);
    one.mbit = mbit;
    return one;
  };
  CHECK(is_unchanged(nodes({with_speed(1, 2'999)}, {with_speed(2, 2'999)})));
  CHECK_FALSE(is_unchanged(nodes({with_speed(1, 3'000)}, {with_speed(2, 3'000)})));
  CHECK(is_unchanged(nodes({fast_net(1)}, {with_speed(2, 2'000)})));  // The slowest link counts.
  CHECK(is_unchanged(nodes({fast_net(1)}, {with_speed(2, 0)})));
  auto unknown = nodes({fast_net(1)}, {fast_net(2)});
  unknown[1].networks[0].mbit = 0;
  CHECK(is_unchanged(unknown));
  // Names lead to none of its networks: behind a router.
  auto elsewhere = nodes({fast_net(1)}, {fast_net(2)});
  elsewhere[0].address = "192.0.2.1";
  CHECK(is_unchanged(elsewhere));
  CHECK(is_unchanged({}));
  CHECK(is_unchanged({{"a", "10.0.0.1", {slow_net(1), fast_net(1)}}}));
}

TEST_CASE("DataNetwork: one that some node lacks is not used", "[network]") {
  CHECK(choose_data_network(nodes({fast_net(1)}, {})).places.empty());
  CHECK(choose_data_network({{"a", "10.0.0.1", {slow_net(1), fast_net(1)}}, {"b", "10.0.0.2", {}}})
            .places.empty());
  NodeNetwork other = fast_net(2);
  other.subnet = "10.2.0.0/24";
  CHECK(choose_data_network(nodes({fast_net(1)}, {other})).places.empty());
}

TEST_CASE("DataNetwork: what only looks alike on all hosts is not used", "[network]") {
  const NodeNetwork bridge{"docker9", "172.17.0.1", "172.17.0.0/16", 400'000};
  CHECK(choose_data_network(nodes({bridge}, {bridge})).places.empty());
  NodeNetwork own = fast_net(2);
  own.is_virtual = true;
  CHECK(choose_data_network(nodes({fast_net(1)}, {own})).places.empty());
  // Two nodes of one machine have its address in common.
  auto three = nodes({fast_net(1)}, {fast_net(2)});
  three.push_back(three[1]);
  CHECK(choose_data_network(three).places.size() == 3);
  three[2].address = "10.0.0.3";
  three[2].networks[0].address = "10.0.0.3";
  CHECK(choose_data_network(three).places.empty());
}

TEST_CASE("DataNetwork: NCCL gets all that are as fast", "[network]") {
  NodeNetwork rails[] = {fast_net(1), fast_net(2)};
  for (NodeNetwork& rail : rails) rail.interface = "ib1", rail.subnet = "10.2.0.0/24";
  rails[0].address = "10.2.0.1", rails[1].address = "10.2.0.2";
  const DataNetwork chosen =
      choose_data_network(nodes({fast_net(1), rails[0]}, {fast_net(2), rails[1]}));
  REQUIRE(chosen.places.size() == 2);
  CHECK(chosen.places[0] == DataPlace{"ib0", "10.1.0.1", "ib0,ib1"});
  CHECK(chosen.why.find("(100 Gb/s, NCCL's over 2 such)") != std::string::npos);
}

TEST_CASE("DataNetwork: a name decides, whatever the speeds", "[network]") {
  auto named = nodes({fast_net(1)}, {fast_net(2)});
  named[0].networks[0].is_named = true;  // The slow one, on one node.
  const DataNetwork slow = choose_data_network(named);
  REQUIRE(slow.places.size() == 2);
  CHECK(slow.places[1] == DataPlace{"eth0", "10.0.0.2", "eth0"});
  CHECK(slow.why.empty());  // Names lead there anyway.
  NodeNetwork unknown{"wire2", "10.3.0.1", "10.3.0.0/24", 0, true, true}, other = unknown;
  other.interface = "wire9", other.address = "10.3.0.2", other.is_named = false;
  const DataNetwork chosen = choose_data_network(nodes({unknown}, {other}));
  REQUIRE(chosen.places.size() == 2);
  CHECK(chosen.places[1] == DataPlace{"wire9", "10.3.0.2", "wire9"});
  CHECK(chosen.why == "data goes over wire2 10.3.0.0/24, as DDPRUN_SOCKET_IFNAME says");
}

TEST_CASE("DataNetwork: a name that leads nowhere is reported", "[network]") {
  NodeNetwork named = fast_net(1);
  named.is_named = true;
  NodeNetwork other = fast_net(2);
  other.subnet = "10.2.0.0/24";
  const DataNetwork lacking = choose_data_network(nodes({named}, {other}));
  CHECK(lacking.places.empty());
  CHECK(lacking.warns);
  CHECK(lacking.why ==
        "DDPRUN_SOCKET_IFNAME=ib0 on a holds for that node alone: b has no address in 10.1.0.0/24");
  const DataNetwork twice = choose_data_network(nodes({named}, {named}));
  CHECK(twice.why.find("two nodes have the same address in 10.1.0.0/24") != std::string::npos);
  // A node with one network does not report it.
  CHECK(choose_data_network({{"a", "10.0.0.1", {slow_net(1), named}}, {"b", "10.0.0.2", {}}})
            .why.empty());
}

TEST_CASE("OwnNetworks: a subnet is made of an address and its mask", "[network]") {
  sockaddr_in address{}, mask{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(0x0a01'0203);
  mask.sin_addr.s_addr = htonl(0xffff'fc00);
  ifaddrs one{};
  one.ifa_flags = IFF_UP | IFF_RUNNING;
  one.ifa_addr = reinterpret_cast<sockaddr*>(&address);
  one.ifa_netmask = reinterpret_cast<sockaddr*>(&mask);
  CHECK(subnet_of(one) == "10.1.0.0/22");
  mask.sin_addr.s_addr = htonl(0xffff'ffff);
  CHECK(subnet_of(one).empty());
  mask.sin_addr.s_addr = htonl(0xffff'0000);
  address.sin_addr.s_addr = htonl(0xa9fe'0001);  // 169.254: of the link alone.
  CHECK(subnet_of(one).empty());
  address.sin_addr.s_addr = htonl(0xc0a8'0001);
  CHECK(subnet_of(one) == "192.168.0.0/16");
  one.ifa_flags = IFF_UP;  // No cable.
  CHECK(subnet_of(one).empty());
  one.ifa_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  CHECK(subnet_of(one).empty());
  CHECK(own_networks("no-such-interface").empty());
}

TEST_CASE("Own networks: a name that an /etc/hosts leads to loopback") {
  const char* const debian = "127.0.0.1\tlocalhost\n127.0.1.1 node7.site node7 # ours\n";
  CHECK(loopback_in_hosts(debian, "node7") == "127.0.1.1");
  CHECK(loopback_in_hosts(debian, "node7.site") == "127.0.1.1");
  CHECK(loopback_in_hosts(debian, "node") == "");
  CHECK(loopback_in_hosts(debian, "ours") == "");
  CHECK(loopback_in_hosts("10.0.0.7 node7\n127.0.1.1 node7\n", "node7") == "");
  CHECK(loopback_in_hosts("::1 node7", "node7") == "::1");
  CHECK(loopback_in_hosts("", "node7") == "");
}

TEST_CASE("Own networks: the interface that has an address") {
  CHECK(interface_of("127.0.0.1") == "lo");
  CHECK(interface_of("192.0.2.77") == "");
}

}  // namespace
}  // namespace ddprun
