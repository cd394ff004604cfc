// The network of a node: its name and addresses, its interfaces, the port where nodes meet, the
// connection to itself, and the links to the other nodes.

#include "launcher/doctor/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "agent/process/cgroup.h"
#include "common/system/own_networks.h"
#include "common/system/peer_user.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"
#include "launcher/doctor/versions.h"
#include "launcher/plan/resolve_name.h"

namespace ddprun::doctor {

namespace fact {

constexpr Text kOwnAddresses{"own_addresses"};  // Of the host's name; empty: the name is unknown.
constexpr Real kNameMs{"name_ms"};              // The time that the look-up took.

constexpr std::string_view kInterfaces = "interfaces";  // Items have these facts:
constexpr Text kInterface{"interface"};
constexpr Text kAddress{"address"};
constexpr Text kSubnet{"subnet"};     // "10.1.0.0/24"; absent: of no other machines.
constexpr Whole kVirtual{"virtual"};  // 1: its speed is invented.
constexpr Whole kMtu{"mtu"};
constexpr Whole kSpeed{"speed_mbit"};
constexpr Whole kErrors{"errors"};    // Damaged packets, received and sent.
constexpr Whole kPackets{"packets"};  // Received and sent.

constexpr Text kPortError{"port_error"};  // Why the port is not free.
constexpr Real kLoopback{"loopback_gb_s"};
constexpr Text kLoopbackError{"loopback_error"};

constexpr Real kMeetMs{"meet_ms"};  // To connect to the endpoint.
constexpr Text kMeetError{"meet_error"};
constexpr Whole kEndpoint{"endpoint_port"};
constexpr Text kEndpointError{"endpoint_error"};

constexpr std::string_view kPeers = "peers";             // An item per link to a peer:
constexpr std::string_view kOtherLinks = "other_links";  // The same, with kSubnet.
constexpr Text kPeer{"peer"};
constexpr Real kPeerMs{"ms"};
constexpr Text kPeerError{"error"};
constexpr Real kPeerGbS{"gb_s"};
constexpr Whole kPeerSent{"segments"};
constexpr Whole kPeerAgain{"segments_again"};  // Sent more than once.

}  // namespace fact

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The addresses of the node's own name on that node.

void gather_names(const ProbeRequest&, Facts& facts) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return;
  const TimePoint began = Clock::now();
  std::string addresses;
  for (const std::string& address : launcher::resolve_name(name.data())) {
    addresses += (addresses.empty() ? "" : " ") + address;
  }
  const std::chrono::duration<double, std::milli> took = Clock::now() - began;
  facts.set(fact::kOwnAddresses, addresses);
  facts.set(fact::kNameMs, took.count());
}

constexpr double kSlowNameMs = 3'000;

bool is_loopback_only(const std::string& addresses) {
  std::size_t begin = 0;
  while (begin < addresses.size()) {
    const std::size_t end = std::min(addresses.find(' ', begin), addresses.size());
    const std::string address = addresses.substr(begin, end - begin);
    if (!address.starts_with("127.") && address != "::1") return false;
    begin = end + 1;
  }
  return true;
}

Findings judge_name(const Facts& facts, const Need& need) {
  const std::string host = facts.text(fact::kHost);
  const auto addresses = facts.get(fact::kOwnAddresses);
  if (!addresses) return {{.status = Status::kUnknown, .value = host}};
  Finding finding{.value = host, .note = *addresses};
  if (addresses->empty()) {
    finding.status = need.several ? Status::kFail : Status::kWarn;
    finding.note = "is not known here; Gloo and NCCL look it up";
    finding.cure = "echo ADDRESS " + host + " >> /etc/hosts";
  } else if (need.several && is_loopback_only(*addresses)) {
    finding.status = Status::kWarn;
    finding.note = "means " + *addresses + " here: other nodes would connect to themselves";
    finding.cure = "--local-addr ADDRESS, or correct /etc/hosts";
  } else if (facts.get_or(fact::kNameMs, 0.0) > kSlowNameMs) {
    finding.status = Status::kWarn;
    finding.note =
        "took " + ms_text(facts.get_or(fact::kNameMs, 0.0)) + " to look up: a slow DNS server?";
    finding.cure = "echo ADDRESS " + host + " >> /etc/hosts";
  }
  return {finding};
}

// Interfaces, the port where nodes meet, and the connection to this machine itself.

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

Facts facts_of_interface(const std::string& name, std::string address, const std::string& subnet) {
  const std::string folder = "/sys/class/net/" + name + "/";
  const auto number = [&](const char* file) { return agent::number_in(folder + file); };
  Facts facts;
  facts.set(fact::kInterface, name);
  facts.set(fact::kAddress, std::move(address));
  if (!subnet.empty() && !is_for_guests(name)) facts.set(fact::kSubnet, subnet);
  if (is_virtual(name)) facts.set(fact::kVirtual, std::int64_t{1});
  if (const auto mtu = number("mtu")) facts.set(fact::kMtu, *mtu);
  if (const std::int64_t speed = link_mbit(name); speed > 0) facts.set(fact::kSpeed, speed);
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
    if (!address.empty())
      facts.add(fact::kInterfaces,
                facts_of_interface(one->ifa_name, std::move(address), subnet_of(*one)));
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

void gather_network(const ProbeRequest& request, Facts& facts) {
  find_interfaces(facts);
  if (request.port != 0) find_port(request.port, facts);
  try_loopback(facts);
}

constexpr std::int64_t kMtuLeast = 1'280;          // IPv6 needs this much.
constexpr std::int64_t kErrorsMany = 100;          // The boot causes fewer.
constexpr std::int64_t kPacketsAnError = 100'000;  // A good link damages fewer than one of so many.

Findings judge_interfaces(const Facts& facts, const Need& need) {
  Findings findings;
  std::string list;
  for (const Facts& interface : facts.list(fact::kInterfaces)) {
    const std::string name = interface.text(fact::kInterface);
    list += (list.empty() ? "" : ", ") + interface.text(fact::kAddress) + " (" + name + ")";
    const std::int64_t errors = interface.get_or(fact::kErrors, std::int64_t{0});
    if (errors > kErrorsMany &&
        errors > interface.get_or(fact::kPackets, std::int64_t{0}) / kPacketsAnError) {
      findings.push_back({.name = name,
                          .status = Status::kWarn,
                          .value = grouped(errors) + " damaged packets",
                          .note = "a cable, or a port of the switch?",
                          .cure = "ip -s -s link show " + name});
    }
    const std::int64_t mtu = interface.get_or(fact::kMtu, kMtuLeast);
    if (mtu < kMtuLeast) {
      findings.push_back({.name = name,
                          .status = Status::kWarn,
                          .value = "MTU " + grouped(mtu),
                          .note = "slow",
                          .cure = "ip link set " + name + " mtu 1500"});
    }
  }
  Finding all{.value = list};
  if (list.empty()) {
    all.value = "loopback only";
    all.status = need.several ? Status::kFail : Status::kSkipped;
    if (need.several) all.cure = "ip address";
  }
  findings.insert(findings.begin(), std::move(all));
  return findings;
}

Findings judge_port(const Facts& facts, const Need&) {
  const auto port = facts.get(fact::kPort);
  if (!port) return not_measured();
  Finding finding{.name = "port " + std::to_string(*port), .value = "free"};
  if (const std::string error = facts.text(fact::kPortError); !error.empty()) {
    finding.status = Status::kWarn;
    finding.value = "taken";
    finding.note = error;
    finding.cure = "--rdzv-endpoint HOST:" + std::to_string(*port + 1);
  }
  return {finding};
}

Findings judge_loopback(const Facts& facts, const Need&) {
  if (const std::string error = facts.text(fact::kLoopbackError); !error.empty()) {
    return {{.status = Status::kFail,
             .value = error,
             .note = "ddprun and PyTorch connect to 127.0.0.1",
             .cure = "ip link set lo up"}};
  }
  const auto rate = facts.get(fact::kLoopback);
  if (!rate) return {{.value = "works"}};
  return {{.value = number_text(*rate) + " GB/s"}};
}

Rows compare_mtu(const Nodes& nodes, const Need&) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    // Describes the interface with the address that the other nodes know.
    std::string value;
    const std::string own = node.facts.text(fact::kMeetAddress);
    for (const Facts& interface : node.facts.list(fact::kInterfaces)) {
      const bool is_it = own.empty() ? value.empty() : interface.text(fact::kAddress) == own;
      const auto mtu = interface.get(fact::kMtu);
      if (is_it && mtu) value = grouped(*mtu);
    }
    values.push_back(std::move(value));
  }
  if (!any_known(values)) return {};
  Row row = row_of("MTU", cells_of(values, Status::kWarn));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "usually " + usual(values) + "; packets may be dropped on the way";
    std::string mtu = usual(values);
    mtu.erase(std::remove(mtu.begin(), mtu.end(), ','), mtu.end());
    row.finding.cure = "ip link set INTERFACE mtu " + mtu;
  }
  return {row};
}

}  // namespace

Subject names_subject() {
  return {.group = Group::kNetwork,
          .probe = Probe{"names", 8s, /*fast=*/true, /*alone=*/false, gather_names},
          .checks = {{"own name", judge_name}}};
}

Subject network_subject() {
  return {.group = Group::kNetwork,
          .probe = Probe{"network", 8s, /*fast=*/true, /*alone=*/false, gather_network},
          .checks = {{"interfaces", judge_interfaces},
                     {"port", judge_port, /*if_several=*/false},
                     {"loopback", judge_loopback}},
          .comparisons = {{Section::kMtu, compare_mtu}}};
}

// The links between the nodes.

Facts serve_links(std::uint16_t endpoint, const std::string& nonce,
                  std::vector<LinkServer>& servers) {
  Facts facts;
  if (auto server = LinkServer::start(0, nonce)) {
    facts.set(fact::kListening, std::int64_t{server->port()});
    servers.push_back(std::move(*server));
  }
  if (endpoint == 0) return facts;
  facts.set(fact::kEndpoint, std::int64_t{endpoint});
  auto server = LinkServer::start(endpoint, nonce);
  if (!server)
    facts.set(fact::kEndpointError, "taken: " + to_string(server.error()));
  else
    servers.push_back(std::move(*server));
  return facts;
}

Facts meet(const Address& endpoint, const std::string& nonce) {
  const LinkMeasurement link = measure_link(endpoint, nonce, {.limit = 5s});
  Facts facts;
  if (!link.error.empty())
    facts.set(fact::kMeetError, link.error);
  else
    facts.set(fact::kMeetMs, link.connect_ms);
  if (!link.own_address.empty()) facts.set(fact::kMeetAddress, link.own_address);
  return facts;
}

Facts link_to(const std::string& name, const Address& address, const std::string& nonce,
              const LinkRequest& request, const std::string& subnet) {
  const LinkMeasurement link = measure_link(address, nonce, request);
  Facts peer;
  peer.set(fact::kPeer, name);
  peer.set(fact::kPeerMs, link.connect_ms);
  if (!link.error.empty()) peer.set(fact::kPeerError, link.error);
  if (request.send_for.count() > 0 && link.error.empty()) peer.set(fact::kPeerGbS, link.gb_s);
  peer.set(fact::kPeerSent, link.segments);
  peer.set(fact::kPeerAgain, link.segments_again);
  Facts facts;
  if (!subnet.empty()) peer.set(fact::kSubnet, subnet);
  facts.add(subnet.empty() ? fact::kPeers : fact::kOtherLinks, std::move(peer));
  return facts;
}

NetworksOfNode networks_of(const NodeFacts& node) {
  NetworksOfNode networks{node.host, node.facts.text(fact::kMeetAddress), {}};
  for (const Facts& interface : node.facts.list(fact::kInterfaces)) {
    const std::string subnet = interface.text(fact::kSubnet);
    if (subnet.empty()) continue;
    networks.networks.push_back(
        {.interface = interface.text(fact::kInterface),
         .address = interface.text(fact::kAddress),
         .subnet = subnet,
         .mbit = interface.get_or(fact::kSpeed, std::int64_t{0}),
         .is_virtual = interface.get_or(fact::kVirtual, std::int64_t{0}) != 0});
  }
  return networks;
}

std::vector<std::string> other_subnets(const std::vector<NetworksOfNode>& nodes) {
  constexpr std::size_t kMost = 4;  // A second each.
  std::vector<std::string> subnets = shared_subnets(nodes);
  std::erase_if(subnets, [&](const std::string& subnet) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const NetworksOfNode& node) {
      return node.address.empty() || network_of(node, subnet)->address == node.address;
    });
  });
  if (subnets.size() > kMost) subnets.resize(kMost);
  return subnets;
}

namespace {

constexpr double kSlowLink = 5;      // Times slower than the others; other load makes 2.
constexpr double kSlowGbS = 0.03;    // A quarter of a Gb/s.
constexpr double kLossShare = 0.01;  // Of all segments.
constexpr std::int64_t kLossLeast = 20;

// From one node to another; absent: not measured.
std::optional<double> rate(const Nodes& nodes, std::size_t from, std::size_t to) {
  for (const Facts& peer : nodes[from].facts.list(fact::kPeers)) {
    const auto rate = peer.get(fact::kPeerGbS);  // Absent if the peer was only reached.
    if (rate && peer.text(fact::kPeer) == nodes[to].host) return rate;
  }
  return std::nullopt;
}

// The best of what a node sends to others, or receives from them.
struct Rates {
  std::optional<double> sends, receives;
};

Rates rates_of(const Nodes& nodes, std::size_t node) {
  Rates best;
  for (std::size_t other = 0; other < nodes.size(); ++other) {
    if (other == node) continue;
    const auto sent = rate(nodes, node, other), received = rate(nodes, other, node);
    if (sent) best.sends = std::max(best.sends.value_or(0), *sent);
    if (received) best.receives = std::max(best.receives.value_or(0), *received);
  }
  return best;
}

bool is_slow(const std::optional<double>& rate, double peers) {
  return rate && (*rate < kSlowGbS || *rate * kSlowLink < peers);
}

// The node sends slowly. If it receives well and sends to slow nodes only, those are to blame.
bool is_to_blame(const Nodes& nodes, std::size_t node, double peers) {
  const Rates own = rates_of(nodes, node);
  if (!is_slow(own.sends, peers)) return false;
  if (!own.receives || is_slow(own.receives, peers)) return true;
  for (std::size_t other = 0; other < nodes.size(); ++other) {
    const bool sends_there = other != node && rate(nodes, node, other).has_value();
    if (sends_there && !is_slow(rates_of(nodes, other).sends, peers)) return true;
  }
  return false;
}

Rows compare_endpoint(const Nodes& nodes, const Need&) {
  const Facts& host = nodes.front().facts;
  const auto port = host.get(fact::kEndpoint);
  if (!port) return {};
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const std::string error = &node == &nodes.front() ? node.facts.text(fact::kEndpointError)
                                                      : node.facts.text(fact::kMeetError);
    const auto ms = node.facts.get(fact::kMeetMs);
    if (!error.empty())
      cells.push_back({error, Status::kFail});
    else
      cells.push_back({ms ? ms_text(*ms) : "", Status::kOk});
  }
  Row row = row_of("reaches :" + std::to_string(*port), std::move(cells));
  if (row.finding.status == Status::kFail) {
    row.finding.note = "the nodes meet there; a firewall, or a name that is not known?";
    row.finding.cure = "nc -vz " + nodes.front().host + " " + std::to_string(*port);
  }
  return {row};
}

// Whether the node was seen to reach the other one.
bool reaches(const Nodes& nodes, const std::string& from, const std::string& to) {
  for (const NodeFacts& node : nodes) {
    if (node.host != from) continue;
    for (const Facts& peer : node.facts.list(fact::kPeers)) {
      if (peer.text(fact::kPeer) == to && peer.text(fact::kPeerError).empty()) return true;
    }
  }
  return false;
}

// The address at which the endpoint sees the node, if the node has no such address.
std::string translated_address(const Facts& facts) {
  const std::string seen = facts.text(fact::kMeetAddress);
  const auto interfaces = facts.list(fact::kInterfaces);
  if (seen.empty() || interfaces.empty()) return "";
  const bool is_own = std::any_of(interfaces.begin(), interfaces.end(), [&](const Facts& one) {
    return one.text(fact::kAddress) == seen;
  });
  return is_own || is_loopback_only(seen) ? "" : seen;
}

constexpr const char* kThroughEndpoint = "--one-port";

Rows compare_translation(const Nodes& nodes, const Need&) {
  std::vector<Cell> cells;
  std::string sentence;
  for (const NodeFacts& node : nodes) {
    const std::string seen = translated_address(node.facts);
    cells.push_back({seen, seen.empty() ? Status::kOk : Status::kWarn});
    if (!seen.empty() && sentence.empty()) {
      sentence = "the endpoint sees " + node.host + " as " + seen +
                 ", a router's address (NAT): others reach it only if the router leads there";
    }
  }
  if (sentence.empty()) return {};
  Row row = row_of("translated to", std::move(cells));
  row.finding.note = sentence;
  row.finding.cure = kThroughEndpoint;
  return {row};
}

Rows compare_reach(const Nodes& nodes, const Need&) {
  std::vector<Cell> cells;
  std::string sentence, cure;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    Cell cell;
    int reached = 0;
    for (const Facts& peer : node.facts.list(fact::kPeers)) {
      any = true;
      const std::string error = peer.text(fact::kPeerError), name = peer.text(fact::kPeer);
      if (error.empty()) ++reached;
      if (error.empty() || cell.status == Status::kFail) continue;
      cell = {"not " + name, Status::kFail};
      if (sentence.empty()) {
        sentence = node.host + " to " + name + ": " + error;
        cure = "nc -vz " + name + " PORT";
        if (!reaches(nodes, name, node.host)) continue;
        sentence += "; " + name + " reaches " + node.host + ", so a firewall or a router lets " +
                    "nothing in to " + name;
        cure = kThroughEndpoint;
      }
    }
    if (cell.value.empty() && node.error.empty()) cell.value = "all " + std::to_string(reached);
    cells.push_back(std::move(cell));
  }
  if (!any) return {};
  Row row = row_of("reach each other", std::move(cells));
  row.finding.note = sentence;
  row.finding.cure = cure;
  return {row};
}

Rows compare_rates(const Nodes& nodes, const Need&) {
  std::vector<double> known;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (const auto rate = rates_of(nodes, i).sends) known.push_back(*rate);
  }
  if (known.empty()) return {};
  std::sort(known.begin(), known.end());
  const double peers = known[known.size() / 2];
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto rate = rates_of(nodes, i).sends;
    const bool slow = is_to_blame(nodes, i, peers);
    cells.push_back({rate ? number_text(*rate) + " GB/s" : "", slow ? Status::kWarn : Status::kOk});
  }
  Row row = row_of("to each other", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "over one TCP connection; the others have " + number_text(peers) + " GB/s";
    if (peers < kSlowGbS)
      row.finding.note = "over one TCP connection: less than a card of 1 Gb/s has";
    row.finding.cure = "ethtool INTERFACE";
  }
  return {row};
}

constexpr double kFaster = 3;  // As for a run's choice.

// From the node to the next one over that network.
const Facts* link_over(const NodeFacts& node, const std::string& subnet) {
  for (const Facts& link : node.facts.list(fact::kOtherLinks)) {
    if (link.text(fact::kSubnet) == subnet) return &link;
  }
  return nullptr;
}

// The slowest link that names lead to; 0: none was measured.
double rate_of_names(const Nodes& nodes) {
  double slowest = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto rate = rates_of(nodes, i).sends;
    if (rate && (slowest == 0 || *rate < slowest)) slowest = *rate;
  }
  return slowest;
}

Row row_of_network(const Nodes& nodes, const std::vector<NetworksOfNode>& networks,
                   const std::string& subnet, const DataNetwork& chosen) {
  std::vector<Cell> cells;
  std::string broken;
  double slowest = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string interface = network_of(networks[i], subnet)->interface;
    const Facts* link = link_over(nodes[i], subnet);
    const std::string error = link ? link->text(fact::kPeerError) : "not measured";
    if (!error.empty()) {
      cells.push_back({interface + " " + error, Status::kOk});
      if (broken.empty()) broken = nodes[i].host + ": " + error;
      continue;
    }
    const double rate = link->get_or(fact::kPeerGbS, 0.0);
    slowest = slowest == 0 ? rate : std::min(slowest, rate);
    cells.push_back({interface + " " + number_text(rate) + " GB/s", Status::kOk});
  }
  const std::string own = network_of(networks.front(), subnet)->interface;
  const bool is_chosen = !chosen.places.empty() && chosen.places.front().interface == own;
  const double names = rate_of_names(nodes);
  const bool is_faster = broken.empty() && names > 0 && slowest >= kFaster * names;
  const Status status = is_chosen && !broken.empty() ? Status::kFail
                        : is_faster && !is_chosen    ? Status::kWarn
                                                     : Status::kOk;
  for (Cell& cell : cells) cell.status = status;
  Row row = row_of("over " + subnet, std::move(cells));
  const std::string beside = "the network of the names has " + number_text(names) + " GB/s";
  if (status == Status::kFail) {
    row.finding.note = "runs send data over it, because its links are faster, but " + broken;
    row.finding.cure = "DDPRUN_SOCKET_IFNAME=INTERFACE, of the network of the names";
  } else if (status == Status::kWarn) {
    row.finding.note = beside + ", and is used";
    row.finding.cure = "DDPRUN_SOCKET_IFNAME=" + own;
  } else if (is_chosen) {
    row.finding.note = "runs send data over it; " + beside;
  }
  return row;
}

Rows compare_networks(const Nodes& nodes, const Need&) {
  std::vector<NetworksOfNode> networks;
  for (const NodeFacts& node : nodes) networks.push_back(networks_of(node));
  const DataNetwork chosen = choose_data_network(networks);
  Rows rows;
  for (const std::string& subnet : other_subnets(networks)) {
    const bool is_measured = std::any_of(nodes.begin(), nodes.end(), [&](const NodeFacts& node) {
      return link_over(node, subnet) != nullptr;
    });
    if (is_measured) rows.push_back(row_of_network(nodes, networks, subnet, chosen));
  }
  return rows;
}

Rows compare_loss(const Nodes& nodes, const Need&) {
  std::vector<Cell> cells;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    std::int64_t sent = 0, again = 0;
    for (const Facts& peer : node.facts.list(fact::kPeers)) {
      sent += peer.get_or(fact::kPeerSent, std::int64_t{0});
      again += peer.get_or(fact::kPeerAgain, std::int64_t{0});
    }
    any = any || sent > 0;
    const double share = sent > 0 ? static_cast<double>(again) / static_cast<double>(sent) : 0;
    const bool lossy = again >= kLossLeast && share > kLossShare;
    cells.push_back(
        {sent > 0 ? number_text(100 * share) + " %" : "", lossy ? Status::kWarn : Status::kOk});
  }
  if (!any) return {};
  Row row = row_of("packet loss", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "of what it sends is sent again; a cable, or a switch that is too small?";
    row.finding.cure = "ip -s -s link";
  }
  return {row};
}

}  // namespace

Subject links_subject() {
  return {.group = Group::kNetwork,
          .comparisons = {{Section::kLinks, compare_endpoint},
                          {Section::kLinks, compare_translation},
                          {Section::kLinks, compare_reach},
                          {Section::kLinks, compare_rates},
                          {Section::kLinks, compare_networks},
                          {Section::kLinks, compare_loss}}};
}

}  // namespace ddprun::doctor
