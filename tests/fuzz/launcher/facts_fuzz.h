#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as the facts of a node and as a request of a doctor; aborts if what was understood
// does not encode to itself, or no report can be made of it.
void fuzz_facts(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
