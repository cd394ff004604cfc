#pragma once
// What a host's name or address says by itself. Pure.

#include <string_view>

namespace ddprun {

// "localhost", 127.0.0.0/8 written in digits and dots, or ::1. Looks no name up.
bool is_loopback(std::string_view host);

// Of ASCII letters, as host names are compared.
bool equal_names(std::string_view a, std::string_view b);

// An address, not a name.
bool is_numeric(std::string_view host);

}  // namespace ddprun
