#pragma once
// Random identifiers and secrets from the kernel.

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddprun {

// `bytes` random bytes as 2 * bytes lower-case hexadecimal digits. Aborts if the kernel has none to
// give.
std::string random_hex(std::size_t bytes);

// Likewise. (std::random_device would tie programs to the newest C library.)
std::uint64_t random_number();

}  // namespace ddprun
