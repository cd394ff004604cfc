#include "common/system/random_id.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/exit_status.h"
#include "common/system/descriptors.h"

namespace ddprun {
namespace {

bool fill_from_device(void* to, std::size_t bytes) {
  const UniqueFd device(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  return device && ::read(device.get(), to, bytes) == static_cast<ssize_t>(bytes);
}

// An old seccomp profile may refuse the system call. To go on without would be to make ids that
// others have, and secrets that they guess.
void fill(void* to, std::size_t bytes) {
  ssize_t got = 0;
  while ((got = ::getrandom(to, bytes, 0)) < 0 && errno == EINTR) {
  }
  if (got == static_cast<ssize_t>(bytes) || fill_from_device(to, bytes)) return;
  std::fprintf(stderr,
               "ddprun: error: neither getrandom (%s) nor /dev/urandom gives random numbers here\n",
               std::strerror(errno));
  std::_Exit(kExitFailed);
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
