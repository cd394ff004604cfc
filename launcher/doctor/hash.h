#pragma once
// A hash of files, by which nodes see that their programs and libraries differ.

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::doctor {

// A hash that tells files apart, not attackers: eight bytes at a time, as fast as memory. Pure.
std::uint64_t hash_of(std::string_view bytes);
std::string hash_text(std::string_view bytes);  // 16 hexadecimal digits.

}  // namespace ddprun::doctor
