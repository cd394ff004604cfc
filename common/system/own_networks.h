#pragma once
// The networks of this machine, as nodes compare them (common/data_network.h). Used by the launcher
// and the doctor.

#include <ifaddrs.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/data_network.h"

namespace ddprun {

// Of containers and virtual machines of this host, by the name of the interface.
bool is_for_guests(std::string_view interface);

// "10.1.0.0/24"; empty: no network of other machines, such as loopback and what is only of a link.
std::string subnet_of(const ifaddrs& one);

// As the driver reports it, in Mbit/s; 0: not at all. A virtual interface invents it.
std::int64_t link_mbit(const std::string& interface);
bool is_virtual(const std::string& interface);

// One per interface and subnet, at most 16; none if there are fewer than two: then nothing is to be
// chosen, and no driver is queried. `named`: an interface that the user has chosen, which is enough
// alone; without that interface there is nothing to be chosen either.
std::vector<NodeNetwork> own_networks(const std::string& named);

// That has this address, which is numeric; empty: none has.
std::string interface_of(const std::string& address);

// Where the text of an /etc/hosts leads `name`, if that is a loopback address, as 127.0.1.1 for a
// machine's own name on Debian; else empty.
std::string loopback_in_hosts(std::string_view hosts, std::string_view name);

}  // namespace ddprun
