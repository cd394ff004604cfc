#pragma once
// See bundle_fuzz.cc.

#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

void fuzz_bundle(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
