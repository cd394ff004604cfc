#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Feeds `data` to one of the parsers of what agents, daemons and ranks send; the first byte
// chooses. Aborts if the parser breaks a promise.
void fuzz_messages(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
