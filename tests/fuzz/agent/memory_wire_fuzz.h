#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

void fuzz_memory_wire(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
