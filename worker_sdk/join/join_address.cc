#include "worker_sdk/join/join_address.h"

#include <algorithm>

#include "worker_sdk/base/socket_io.h"

namespace ddprun::worker_sdk {
namespace {

bool is_loopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "::1";
}

}  // namespace

std::string address_for_peers(const std::vector<Introduction>& hellos, int rank,
                              Clock::time_point deadline) {
  const Introduction& mine = hellos[static_cast<std::size_t>(rank)];
  const std::string fallback = mine.address.empty() ? "127.0.0.1" : mine.address;
  const bool one_network =
      std::all_of(hellos.begin(), hellos.end(),
                  [&](const Introduction& hello) { return hello.network == mine.network; });
  if (one_network || !is_loopback(mine.address)) return fallback;
  for (const Introduction& hello : hellos) {
    if (hello.network == mine.network) continue;
    const std::string target = is_loopback(hello.address) ? hello.host : hello.address;
    const std::string address = local_address_towards(target, deadline);
    if (!is_loopback(address)) return address;
  }
  return fallback;
}

}  // namespace ddprun::worker_sdk
