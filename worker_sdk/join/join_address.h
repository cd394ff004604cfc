#pragma once
// At which of its addresses a rank can be reached by its peers. Only join.cc uses this.

#include <string>
#include <vector>

#include "worker_sdk/join/membership.h"

namespace ddprun::worker_sdk {

// Numeric. Ranks of one network namespace meet on its loopback. Otherwise the address must not be
// one that only this host has, as that of a store on this very host may be; asks the routes to the
// others then.
std::string address_for_peers(const std::vector<Introduction>& hellos, int rank,
                              Clock::time_point deadline);

}  // namespace ddprun::worker_sdk
