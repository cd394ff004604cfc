#include "worker_sdk/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/system/descriptors.h"
#include "ddprun/atomic_file.h"
#include "ddprun/error.h"

namespace ddprun {
namespace {

[[noreturn]] void fail(const std::string& doing, const std::string& path, int error) {
  throw Error(ErrorKind::system, {}, "cannot " + doing + " " + path + ": " + std::strerror(error));
}

// Throws with errno's reason unless `ok`.
void require(bool ok, const char* doing, const std::string& path) {
  if (!ok) fail(doing, path, errno);
}

void write_synced(const std::string& path,
                  const std::function<void(const worker_sdk::WritePart&)>& contents, mode_t mode) {
  // What lies there already keeps its mode and its owner, and may be a link.
  const bool is_private = (mode & 077) == 0;
  if (is_private) ::unlink(path.c_str());
  const int as_new = is_private ? O_EXCL | O_NOFOLLOW : O_TRUNC;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | as_new, mode));
  require(static_cast<bool>(file), "create", path);
  contents([&](std::string_view part) { require(write_all(file.get(), part), "write", path); });
  require(::fsync(file.get()) == 0, "sync", path);
}

}  // namespace

void replace_file(const std::string& path, std::string_view contents) {
  const auto write_all_of_it = [&](const worker_sdk::WritePart& write) { write(contents); };
  worker_sdk::replace_file_by_parts(path, write_all_of_it, 0644);
}

void worker_sdk::replace_file_by_parts(const std::string& path,
                                       const std::function<void(const WritePart&)>& contents,
                                       mode_t mode) {
  const std::string temporary = path + ".tmp";
  try {
    write_synced(temporary, contents, mode);
    require(std::rename(temporary.c_str(), path.c_str()) == 0, "rename to", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const auto slash = path.rfind('/');
  sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

void sync_folder(const std::string& folder) {
  const UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  require(static_cast<bool>(directory), "open", folder);
  require(::fsync(directory.get()) == 0, "sync", folder);
}

std::optional<std::string> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::nullopt;
  require(static_cast<bool>(file), "open", path);
  std::string contents;
  char chunk[65536];
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "read", path);
    if (n == 0) return contents;
    contents.append(chunk, static_cast<std::size_t>(n));
  }
}

}  // namespace ddprun
