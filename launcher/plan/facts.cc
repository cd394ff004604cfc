#include "launcher/plan/facts.h"

#include <algorithm>

#include "common/text/words.h"

namespace ddprun::launcher {

bool has_address(const MachineFacts& facts, std::string_view address) {
  return std::ranges::find(facts.own_addresses, address) != facts.own_addresses.end();
}

bool is_any_address(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

bool names_this_machine(std::string_view host, const MachineFacts& facts) {
  if (is_loopback(host) || is_any_address(host)) return true;
  if (equal_names(host, facts.host_name) || has_address(facts, host)) return true;
  return std::any_of(facts.endpoint_addresses.begin(), facts.endpoint_addresses.end(),
                     [&](const std::string& address) {
                       return is_loopback(address) || has_address(facts, address);
                     });
}

}  // namespace ddprun::launcher
