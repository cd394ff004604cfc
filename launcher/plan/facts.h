#pragma once
// The facts about this machine that make_plan() uses, and the meaning of a host's name or address
// on it. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct MachineFacts {
  std::string host_name;
  std::vector<std::string> own_addresses;  // Numeric, without loopback, best first.
  std::vector<std::string>
      endpoint_addresses;             // Of name_to_resolve(); empty if it was not looked up.
  bool token_in_environment = false;  // DDPRUN_TOKEN is set and not empty.
  std::string token_file;             // DDPRUN_TOKEN_FILE, or empty.
  bool in_pod = false;  // In Kubernetes, where output goes only to the log.
};

bool is_any_address(std::string_view host);  // "All interfaces", in a server's notation.
bool has_address(const MachineFacts& facts, std::string_view address);
bool names_this_machine(std::string_view host, const MachineFacts& facts);

}  // namespace ddprun::launcher
