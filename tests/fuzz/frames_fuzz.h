#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Feeds `data` to a FrameReader in pieces and aborts where it breaks a promise.
void fuzz_frames(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
