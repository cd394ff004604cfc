#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as a rank's report on its GPU, as the members left in a group, and as a unique id in
// hexadecimal digits; aborts if what was understood does not encode to itself.
void fuzz_gpu_facts(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
