#pragma once
// See words_fuzz.cc.

#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

void fuzz_words(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
