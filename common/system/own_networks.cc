#include "common/system/own_networks.h"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "common/system/descriptors.h"
#include "common/text/words.h"

namespace ddprun {
namespace {

constexpr std::size_t kNetworksMax = 16;  // Machines with more have them for something else.

// The bytes of an IP address: its number of bytes, or 0.
std::size_t address_bytes(const sockaddr* address, std::array<std::uint8_t, 16>& bytes) {
  bytes.fill(0);
  if (address && address->sa_family == AF_INET) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
    return 4;
  }
  if (!address || address->sa_family != AF_INET6) return 0;
  std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  return 16;
}

std::string address_text(const std::array<std::uint8_t, 16>& bytes, std::size_t size) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes.data(), text.data(), text.size());
  return text.data();
}

bool is_of_link_only(const std::array<std::uint8_t, 16>& bytes, std::size_t size) {
  return size == 4 ? bytes[0] == 169 && bytes[1] == 254
                   : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

}  // namespace

bool is_for_guests(std::string_view interface) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"docker", "br-", "virbr", "veth"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return interface.starts_with(prefix); });
}

std::string subnet_of(const ifaddrs& one) {
  constexpr unsigned kWanted = IFF_UP | IFF_RUNNING;
  const bool leads_out =
      (one.ifa_flags & kWanted) == kWanted && !(one.ifa_flags & (IFF_LOOPBACK | IFF_POINTOPOINT));
  std::array<std::uint8_t, 16> address, mask;
  const std::size_t size = address_bytes(one.ifa_addr, address);
  if (!leads_out || size == 0 || is_of_link_only(address, size)) return "";
  // Some systems leave out the family of a mask.
  if (!one.ifa_netmask) return "";
  sockaddr_storage whole{};
  std::memcpy(&whole, one.ifa_netmask, size == 4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  whole.ss_family = one.ifa_addr->sa_family;
  address_bytes(reinterpret_cast<const sockaddr*>(&whole), mask);
  int bits = 0;
  for (std::size_t i = 0; i < size; ++i) {
    address[i] &= mask[i];
    bits += __builtin_popcount(mask[i]);
  }
  const bool is_one_host = bits == static_cast<int>(size) * 8;
  return is_one_host ? "" : address_text(address, size) + "/" + std::to_string(bits);
}

std::int64_t link_mbit(const std::string& interface) {
  std::int64_t mbit = 0;
  std::ifstream("/sys/class/net/" + interface + "/speed") >> mbit;
  constexpr std::int64_t kMost = 100'000'000;  // Some drivers write -1 without its sign.
  return mbit > 0 && mbit < kMost ? mbit : 0;
}

bool is_virtual(const std::string& interface) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (!socket || ::ioctl(socket.get(), SIOCETHTOOL, &request) != 0) return true;
  info.driver[sizeof(info.driver) - 1] = '\0';
  constexpr std::array<std::string_view, 9> kVirtual = {
      "veth", "bridge", "tun", "dummy", "vxlan", "geneve", "wireguard", "openvswitch", "ifb"};
  return std::find(kVirtual.begin(), kVirtual.end(), std::string_view(info.driver)) !=
         kVirtual.end();
}

std::vector<NodeNetwork> own_networks(const std::string& named) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<NodeNetwork> found;
  for (const ifaddrs* one = list; one && found.size() < kNetworksMax; one = one->ifa_next) {
    const std::string subnet = subnet_of(*one), name = one->ifa_name;
    const bool is_named = !named.empty() && name == named;
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const NodeNetwork& other) {
      return other.subnet == subnet || other.interface == name;
    });
    if (subnet.empty() || is_known || (is_for_guests(name) && !is_named)) continue;
    std::array<std::uint8_t, 16> address;
    const std::size_t size = address_bytes(one->ifa_addr, address);
    found.push_back({.interface = name,
                     .address = address_text(address, size),
                     .subnet = subnet,
                     .is_named = is_named});
  }
  const bool any_named =
      std::any_of(found.begin(), found.end(), [](const NodeNetwork& one) { return one.is_named; });
  if (any_named == named.empty() || (found.size() < 2 && !any_named)) return {};
  for (NodeNetwork& one : found) {
    one.mbit = link_mbit(one.interface);
    one.is_virtual = is_virtual(one.interface);
  }
  return found;
}

std::string interface_of(const std::string& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    std::array<std::uint8_t, 16> bytes;
    const std::size_t size = address_bytes(one->ifa_addr, bytes);
    if (size > 0 && address_text(bytes, size) == address) return one->ifa_name;
  }
  return "";
}

std::string loopback_in_hosts(std::string_view hosts, std::string_view name) {
  std::istringstream lines{std::string(hosts)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    for (std::string word; words >> word;) {
      if (word == name) return is_loopback(address) ? address : "";  // The first line counts.
    }
  }
  return "";
}

}  // namespace ddprun
