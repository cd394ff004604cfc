#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Expands `data` as a host list and aborts where a limit is not kept.
void fuzz_host_list(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
