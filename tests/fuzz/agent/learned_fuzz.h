#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads the first half of `data` as a kept list of modules, and the second as a worker's notes;
// aborts if the list would be another one after it was written and read.
void fuzz_learned(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
