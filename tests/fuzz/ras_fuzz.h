#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as NCCL's RAS report; aborts if what is understood cannot be shown, or what was
// repaired once would be repaired again.
void fuzz_ras(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
