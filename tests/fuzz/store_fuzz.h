#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Feeds `data` to a store from three connections in turn and aborts where the store breaks a
// promise.
void fuzz_store(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
