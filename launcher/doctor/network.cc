// Interfaces, the port where nodes meet, and the way from this machine to itself.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/system/port_owner.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/probes.h"
#include "launcher/doctor/tcp_link.h"

namespace ddprun::doctor {
namespace {

using namespace std::chrono_literals;

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return "";
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return text;
}

Facts facts_of(const std::string& name, std::string address) {
  const std::string folder = "/sys/class/net/" + name + "/";
  const auto number = [&](const char* file) { return agent::number_in(folder + file); };
  Facts facts;
  facts.set(fact::kInterface, name);
  facts.set(fact::kAddress, std::move(address));
  if (const auto mtu = number("mtu")) facts.set(fact::kMtu, *mtu);
  if (const auto speed = number("speed"); speed && *speed > 0) facts.set(fact::kSpeed, *speed);
  facts.set(fact::kErrors, number("statistics/rx_errors").value_or(0) +
                               number("statistics/tx_errors").value_or(0));
  facts.set(fact::kPackets, number("statistics/rx_packets").value_or(0) +
                                number("statistics/tx_packets").value_or(0));
  return facts;
}

void find_interfaces(Facts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const bool usable = (one->ifa_flags & IFF_UP) && !(one->ifa_flags & IFF_LOOPBACK);
    if (!usable || !one->ifa_addr) continue;
    std::string address = numeric(one->ifa_addr);
    if (!address.empty()) facts.add(fact::kInterfaces, facts_of(one->ifa_name, std::move(address)));
  }
}

void find_port(std::uint16_t port, Facts& facts) {
  facts.set(fact::kPort, std::int64_t{port});
  const auto listening = listen_on(port);
  if (listening) return;
  const std::string owner = port_owner(port);
  facts.set(fact::kPortError, owner.empty() ? to_string(listening.error()) : "by " + owner);
}

void try_loopback(Facts& facts) {
  const auto server = LinkServer::start(0, "loopback");
  if (!server) return facts.set(fact::kLoopbackError, to_string(server.error()));
  const Address here{"127.0.0.1", server->port()};
  const LinkMeasurement link = measure_link(here, "loopback", {.limit = 3s, .send_for = 50ms});
  if (!link.error.empty()) return facts.set(fact::kLoopbackError, link.error);
  facts.set(fact::kLoopback, link.gb_s);
}

}  // namespace

void probe_network(const ProbeRequest& request, Facts& facts) {
  find_interfaces(facts);
  if (request.port != 0) find_port(request.port, facts);
  try_loopback(facts);
}

}  // namespace ddprun::doctor
