#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Reads `data` as a config file and its entries as options; aborts where a limit is not kept or an
// error is more than a line.
void fuzz_config(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
