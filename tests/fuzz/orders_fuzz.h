#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as orders and as a signal; aborts if what was understood does not encode to itself.
void fuzz_orders(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
