#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as the facts of a kept fork server; aborts if they would be others after they were
// written and read.
void fuzz_kept(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
