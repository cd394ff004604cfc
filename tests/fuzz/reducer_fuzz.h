#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Drives a Reducer by `data` beside a plain list of what was marked, and aborts where they differ.
void fuzz_reducer(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
