#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as what the script of --host-discovery prints; aborts if a host that is understood
// could be taken for something else by ssh.
void fuzz_host_lines(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
