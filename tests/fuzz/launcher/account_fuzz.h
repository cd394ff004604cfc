#pragma once
// What `ddprunctl whatif` makes of an account, under any bytes.

#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

void fuzz_account(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
