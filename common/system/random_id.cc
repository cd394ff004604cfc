#include "common/system/random_id.h"

#include <sys/random.h>

#include "common/assert.h"

namespace ddprun {
namespace {

void fill(void* to, std::size_t bytes) {
  const ssize_t got = ::getrandom(to, bytes, 0);
  DDPRUN_ASSERT(got == static_cast<ssize_t>(bytes));
}

}  // namespace

std::string random_hex(std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string raw(bytes, '\0');
  fill(raw.data(), raw.size());
  std::string hex;
  hex.reserve(2 * bytes);
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill(&number, sizeof number);
  return number;
}

}  // namespace ddprun
