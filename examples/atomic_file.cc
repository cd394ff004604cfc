#include "examples/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace examples {
namespace {

[[noreturn]] void fail(const std::string& doing, const std::string& path, int error) {
  throw std::runtime_error("cannot " + doing + " " + path + ": " + std::strerror(error));
}

// Throws with errno's reason unless `ok`.
void require(bool ok, const char* doing, const std::string& path) {
  if (!ok) fail(doing, path, errno);
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void write_all(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t n = ::write(fd, contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, "write", path);
    contents.remove_prefix(static_cast<std::size_t>(n));
  }
}

void write_synced(const std::string& path, std::string_view contents) {
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  require(file.fd >= 0, "create", path);
  write_all(file.fd, contents, path);
  require(::fsync(file.fd) == 0, "sync", path);
}

void sync_folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Descriptor directory{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  require(directory.fd >= 0, "open", folder);
  require(::fsync(directory.fd) == 0, "sync", folder);
}

}  // namespace

void replace_file(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  try {
    write_synced(temporary, contents);
    require(std::rename(temporary.c_str(), path.c_str()) == 0, "rename to", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder_of(path);
}

std::optional<std::string> read_file(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0 && errno == ENOENT) return std::nullopt;
  require(file.fd >= 0, "open", path);
  std::string contents;
  char chunk[65536];
  for (;;) {
    const ssize_t n = ::read(file.fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "read", path);
    if (n == 0) return contents;
    contents.append(chunk, static_cast<std::size_t>(n));
  }
}

}  // namespace examples
