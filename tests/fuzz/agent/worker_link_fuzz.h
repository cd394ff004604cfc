#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as a message of a worker and as one of its agent; aborts if what was understood does
// not encode to itself, or to more than a message may have.
void fuzz_worker_link(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
