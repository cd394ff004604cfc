#include "launcher/plan/gather_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string_view>

#include "common/system/own_networks.h"

namespace ddprun::launcher {
namespace {

struct OwnAddress {
  int rank;  // Lower is likelier to be reachable from other machines.
  std::string text;
};

std::optional<OwnAddress> address_of(const ifaddrs& interface) {
  const bool usable = (interface.ifa_flags & IFF_UP) && !(interface.ifa_flags & IFF_LOOPBACK);
  if (!usable || interface.ifa_addr == nullptr) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int guests = is_for_guests(interface.ifa_name) ? 2 : 0;
  const int family = interface.ifa_addr->sa_family;
  if (family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(interface.ifa_addr);
    inet_ntop(family, &v4->sin_addr, text.data(), text.size());
    return OwnAddress{guests, text.data()};
  }
  if (family != AF_INET6) return std::nullopt;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr);
  if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return std::nullopt;
  inet_ntop(family, &v6->sin6_addr, text.data(), text.size());
  return OwnAddress{guests + 1, text.data()};
}

}  // namespace

std::vector<std::string> addresses_of(const ifaddrs* list) {
  std::vector<OwnAddress> found;
  for (const ifaddrs* interface = list; interface != nullptr; interface = interface->ifa_next) {
    if (auto address = address_of(*interface)) found.push_back(std::move(*address));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const OwnAddress& a, const OwnAddress& b) { return a.rank < b.rank; });
  std::vector<std::string> texts;
  texts.reserve(found.size());
  for (OwnAddress& address : found) texts.push_back(std::move(address.text));
  return texts;
}

namespace {

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  return addresses_of(list);
}

std::vector<std::string> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;
    if (family == AF_INET || family == AF_INET6) names.insert(one->ifa_name);
  }
  return {names.begin(), names.end()};
}

// A person may work in a pod by kubectl exec, but has no rank from a Job or a TrainJob.
bool in_pod(const Environment& environment) {
  if (value_of(environment, "KUBERNETES_SERVICE_HOST").empty()) return false;
  for (const char* rank : {"JOB_COMPLETION_INDEX", "PET_NODE_RANK"}) {
    if (!value_of(environment, rank).empty()) return true;
  }
  return ::isatty(STDERR_FILENO) == 0;
}

}  // namespace

MachineFacts gather_facts(const Environment& environment) {
  MachineFacts facts;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) facts.host_name = name.data();
  facts.own_addresses = own_addresses();
  facts.token_in_environment = !value_of(environment, "DDPRUN_TOKEN").empty();
  facts.token_file = value_of(environment, "DDPRUN_TOKEN_FILE");
  facts.in_pod = in_pod(environment);
  facts.socket_interface = value_of(environment, "DDPRUN_SOCKET_IFNAME");
  if (!facts.socket_interface.empty()) facts.interfaces = interfaces();
  return facts;
}

}  // namespace ddprun::launcher
