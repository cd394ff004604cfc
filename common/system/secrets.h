#pragma once
// Makes secrets, and keeps them, above all the run's token, from other processes of the same user,
// such as a run's own workers, and from readers of core files.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun {

constexpr const char* kTokenVariable = "DDPRUN_TOKEN";
constexpr const char* kTokenFileVariable = "DDPRUN_TOKEN_FILE";

// Without blanks at its end, which editors and `echo` put there.
std::string trimmed(std::string secret);

// The value of an environment variable, trimmed, which is overwritten where it stands, so that it
// is gone from /proc/PID/environ of this process and of those that it forks, and unset. To be
// called before the first fork; setenv() of the same name before it would leave the first value
// where it was.
std::optional<std::string> take_variable(const char* name);

// From now on this process leaves no core files, and of all users only root may trace it or read
// its memory. Forked children inherit this; executed programs do not.
void hide_memory();

// Leaves a secret that was taken to the program that this process is about to execute in its own
// place: in a memory file without a name, which the variable `file_variable` names.
Result<void> leave_to_next_program(const char* file_variable, std::string_view secret);

// The first line of a file, trimmed. The failure names `what` as missing.
Result<std::string> secret_in_file(const std::string& path, std::string_view what);

// A warning, for tokens in use beyond this machine, if the token is so short that it can be found
// by trying.
std::optional<std::string> short_token_warning(std::string_view token);

// `bytes` random bytes of the kernel as 2 * bytes lower-case hexadecimal digits. Aborts if the
// kernel has none to give.
std::string random_hex(std::size_t bytes);

// Likewise. (std::random_device would tie programs to the newest C library.)
std::uint64_t random_number();

}  // namespace ddprun
