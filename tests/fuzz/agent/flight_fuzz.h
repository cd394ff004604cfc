#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data`, and each half of it, as what workers answer about their flight recorder; aborts if
// the text about them would not be one printable line.
void fuzz_flight(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
