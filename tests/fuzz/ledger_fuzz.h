#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as each of the ledger's texts; aborts if what is understood is not the same when it
// is written and read again.
void fuzz_ledger(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
