#pragma once
// Collects the MachineFacts of this machine that make_plan() needs. Looks nothing up on the
// network: decide.cc resolves name_to_resolve(), with a deadline, and fills in endpoint_addresses.

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

struct ifaddrs;

namespace ddprun::launcher {

// Addresses of interfaces that are up, IPv4 before IPv6, without loopback and link-local ones;
// those of bridges for containers and virtual machines are last.
std::vector<std::string> addresses_of(const ifaddrs* list);
MachineFacts gather_facts(const Environment& environment);

}  // namespace ddprun::launcher
