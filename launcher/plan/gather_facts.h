#pragma once
// Asks this machine for the MachineFacts that make_plan() needs. Looks nothing up on the network:
// decide.cc resolves name_to_resolve(), with a deadline, and fills in endpoint_addresses.

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/facts.h"

struct ifaddrs;

namespace ddprun::launcher {

// Addresses of interfaces that are up, IPv4 before IPv6, without loopback and link-local ones;
// those of bridges that containers and virtual machines use come last.
std::vector<std::string> addresses_of(const ifaddrs* list);
MachineFacts gather_facts(const Environment& environment);

}  // namespace ddprun::launcher
