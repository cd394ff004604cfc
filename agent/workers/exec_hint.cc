#include "agent/workers/exec_hint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "common/system/descriptors.h"
#include "common/text/screen.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kFirstBytes = 256;  // What the kernel reads, execve(2).

std::string first_bytes(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(kFirstBytes, '\0');
  const ssize_t got = file ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

std::string of_interpreter(std::string_view line) {
  const bool carriage_return = line.ends_with('\r');
  if (carriage_return) line.remove_suffix(1);
  line.remove_prefix(std::min(line.find_first_not_of(" \t", 2), line.size()));
  const std::string name = without_escapes(line.substr(0, line.find_first_of(" \t")));
  if (carriage_return) {
    return " (its lines end with CR LF, as on Windows, so the kernel looks for an interpreter '" +
           name + "\\r': save it with LF)";
  }
  return " (the interpreter " + name + " that its first line names is not there)";
}

// ENOEXEC. The kernel takes no part of a #! line for an interpreter's name.
std::string of_content(const std::string& bytes) {
  const bool whole = bytes.size() < kFirstBytes || bytes.find('\n') != std::string::npos;
  if (!bytes.starts_with("#!")) return " (neither a binary nor a script with a #! line)";
  if (whole) return " (its #! line names no interpreter)";
  return " (its #! line is longer than the " + std::to_string(kFirstBytes - 1) +
         " characters that the kernel reads: shorten the interpreter's path, by a link to it or "
         "by `#!/usr/bin/env python3`; a Python script can be named .py)";
}

}  // namespace

std::string exec_hint(const std::string& path, int error) {
  if (error != ENOEXEC && error != ENOENT) return "";
  const std::string bytes = first_bytes(path);
  if (error == ENOEXEC) return of_content(bytes);
  const std::string_view line = std::string_view(bytes).substr(0, bytes.find('\n'));
  if (line.starts_with("#!")) return of_interpreter(line);
  if (line.starts_with("\177ELF")) {
    return " (the dynamic loader that it names is not there: it was built for another system)";
  }
  return "";
}

}  // namespace ddprun::agent
