#include "launcher/doctor/hash.h"

#include <bit>
#include <cstdio>
#include <cstring>

namespace ddprun::doctor {

std::uint64_t hash_of(std::string_view bytes) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t hash = kOdd ^ bytes.size();
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t size = bytes.size() < sizeof word ? bytes.size() : sizeof word;
    std::memcpy(&word, bytes.data(), size);
    hash = std::rotl((hash ^ word) * kOdd, 29);
    bytes.remove_prefix(size);
  }
  hash = (hash ^ (hash >> 32)) * kOdd;
  return hash ^ (hash >> 29);
}

std::string hash_text(std::string_view bytes) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_of(bytes)));
  return text;
}

}  // namespace ddprun::doctor
