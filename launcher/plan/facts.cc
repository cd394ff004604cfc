#include "launcher/plan/facts.h"

#include <algorithm>
#include <cctype>

namespace ddprun::launcher {
namespace {

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

bool has_address(const MachineFacts& facts, std::string_view address) {
  return std::ranges::find(facts.own_addresses, address) != facts.own_addresses.end();
}

bool is_numeric(std::string_view host) {
  return host.find(':') != std::string_view::npos ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool is_any_address(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

bool is_loopback(std::string_view host) {
  return equal_names(host, "localhost") || host == "::1" ||
         (host.starts_with("127.") && is_numeric(host));
}

bool names_this_machine(std::string_view host, const MachineFacts& facts) {
  if (is_loopback(host) || is_any_address(host)) return true;
  if (equal_names(host, facts.host_name) || has_address(facts, host)) return true;
  return std::any_of(facts.endpoint_addresses.begin(), facts.endpoint_addresses.end(),
                     [&](const std::string& address) {
                       return is_loopback(address) || has_address(facts, address);
                     });
}

}  // namespace ddprun::launcher
