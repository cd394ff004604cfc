#include "common/system/secrets.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/exit_status.h"
#include "common/system/descriptors.h"

namespace ddprun {
namespace {

constexpr std::size_t kSecretBytesMax = 4096;
constexpr std::size_t kTokenBytesWanted = 16;

}  // namespace

std::optional<std::string> take_variable(const char* name) {
  const std::string beginning = std::string(name) + "=";
  std::optional<std::string> value;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    if (!std::string_view(*entry).starts_with(beginning)) continue;
    char* text = *entry + beginning.size();
    if (!value) value = trimmed(text);
    ::explicit_bzero(text, std::strlen(text));
  }
  ::unsetenv(name);
  return value;
}

std::string trimmed(std::string secret) {
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) {
    secret.pop_back();
  }
  return secret;
}

void hide_memory() { ::prctl(PR_SET_DUMPABLE, 0); }

Result<void> leave_to_next_program(const char* file_variable, std::string_view secret) {
  UniqueFd file(::memfd_create("ddprun-secret", 0));
  if (!file) return errno_failure("making a memory file for a secret");
  if (::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return errno_failure("writing a secret to a memory file");
  }
  ::setenv(file_variable, ("/proc/self/fd/" + std::to_string(file.release())).c_str(), 1);
  return {};
}

Result<std::string> secret_in_file(const std::string& path, std::string_view what) {
  errno = 0;
  std::ifstream in(path);
  std::string secret;
  std::getline(in, secret);
  const int error = errno;
  secret = trimmed(std::move(secret));
  if (!secret.empty() && secret.size() <= kSecretBytesMax) return secret;
  std::string why = "it is empty";
  if (!secret.empty()) {
    why = "it has more than " + std::to_string(kSecretBytesMax) + " bytes";
  } else if (error != 0) {
    why = std::strerror(error);
  }
  return Failure{Errc::kBadOption, "no " + std::string(what) +
                                       " can be read from the first line of " + path + ": " + why};
}

std::optional<std::string> short_token_warning(std::string_view token) {
  if (token.size() >= kTokenBytesWanted) return std::nullopt;
  return "the token has only " + std::to_string(token.size()) +
         (token.size() == 1 ? " character" : " characters") +
         ": whoever records the network's traffic can find it by trying, and then join. "
         "`openssl rand -hex 32` makes a token that nobody finds";
}

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
