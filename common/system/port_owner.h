#pragma once
// Which process holds a TCP port of this machine; for the error message if the port is taken.

#include <cstdint>
#include <string>

namespace ddprun {

// "python3 (pid 4711)", or nothing if no such process can be found or looked into. Reads /proc.
std::string port_owner(std::uint16_t port);

}  // namespace ddprun
