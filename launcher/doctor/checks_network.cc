// Names, interfaces and ports, as one node has them.

#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/finding.h"

namespace ddprun::doctor {
namespace {

constexpr double kSlowNameMs = 3'000;
constexpr std::int64_t kMtuLeast = 1'280;          // IPv6 needs as much.
constexpr std::int64_t kErrorsMany = 100;          // Fewer are the boot's.
constexpr std::int64_t kPacketsAnError = 100'000;  // A good link loses less than one of so many.

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

}  // namespace

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
                          .value = count_text(errors) + " damaged packets",
                          .note = "a cable, or a port of the switch?",
                          .cure = "ip -s -s link show " + name});
    }
    const std::int64_t mtu = interface.get_or(fact::kMtu, kMtuLeast);
    if (mtu < kMtuLeast) {
      findings.push_back({.name = name,
                          .status = Status::kWarn,
                          .value = "MTU " + count_text(mtu),
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
  if (!port) return {{.status = Status::kUnknown, .value = "not measured"}};
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

}  // namespace ddprun::doctor
