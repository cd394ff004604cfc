#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as the record of a run and as a daemon's history; aborts if a record is not read as
// it was written, or if what is shown of it has anything that a terminal obeys.
void fuzz_history(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
