#pragma once
// Random identifiers and secrets from the kernel.

#include <cstddef>
#include <string>

namespace ddprun {

// `bytes` random bytes as 2 * bytes lower-case hexadecimal digits. Aborts if the kernel has none to
// give.
std::string random_hex(std::size_t bytes);

}  // namespace ddprun
