#include "common/system/secrets.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

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

}  // namespace ddprun
