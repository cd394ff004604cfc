#include "rendezvous/journal/file_operations.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

namespace ddprun::rendezvous {
namespace {

constexpr off_t kFileBytesMax = off_t{1} << 30;

}  // namespace

Result<UniqueFd> FileOperations::open(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd) return errno_failure("opening " + path);
  return fd;
}

Result<void> FileOperations::append(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_failure("writing " + std::to_string(bytes.size()) + " bytes");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> FileOperations::cut(int fd, std::size_t size) {
  if (::ftruncate(fd, static_cast<off_t>(size)) == 0) return {};
  return errno_failure("cutting to " + std::to_string(size) + " bytes");
}

Result<void> FileOperations::sync(int fd) {
  if (::fsync(fd) == 0) return {};
  return errno_failure("syncing");
}

Result<void> FileOperations::rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return {};
  return errno_failure("renaming " + from);
}

Result<void> make_folder(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST && end == std::string::npos) {
      return errno_failure("making the folder " + path);
    }
    if (end == std::string::npos) return {};
  }
}

Result<std::string> read_file(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_failure("reading the size");
  if (info.st_size > kFileBytesMax) {
    return Failure{Errc::kBadMessage, "reading " + std::to_string(info.st_size) + " bytes"};
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_failure("reading");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace ddprun::rendezvous
