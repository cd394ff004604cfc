#include "common/system/folder.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

namespace ddprun {
namespace {

using FileIds = std::set<std::pair<dev_t, ino_t>>;

std::uint64_t add_files(const std::string& folder, FileIds& seen) {
  constexpr std::uint64_t kBlock = 512;  // Of st_blocks, whatever the file system's block is.
  std::uint64_t bytes = 0;
  for (const std::string& name : names_in(folder).names) {
    const std::string path = folder + "/" + name;
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) continue;
    if (S_ISDIR(found.st_mode)) {
      bytes += add_files(path, seen);
    } else if (seen.emplace(found.st_dev, found.st_ino).second) {
      bytes += static_cast<std::uint64_t>(found.st_blocks) * kBlock;
    }
  }
  return bytes;
}

}  // namespace

Listing names_in(const std::string& folder) {
  Listing listing;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) return {.names = {}, .error = errno};
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(open.get());
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") listing.names.push_back(name);
  }
  listing.error = errno;
  std::ranges::sort(listing.names);
  return listing;
}

int make_folders(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat found {};
    if (::mkdir(part.c_str(), mode) != 0) {
      const int error = errno;
      if (::stat(part.c_str(), &found) != 0) return error;
      if (!S_ISDIR(found.st_mode)) return ENOTDIR;
    }
    if (end == std::string::npos) return 0;
  }
}

Result<void> make_private_folders(const std::string& path) {
  errno = make_folders(path, S_IRWXU);
  if (errno == 0) return {};
  return errno_failure("making the folder " + path);
}

void remove_tree(const std::string& path) {
  constexpr int kDescriptors = 8;
  const auto remove_one = [](const char* name, const struct stat*, int, FTW*) {
    std::remove(name);
    return 0;
  };
  ::nftw(path.c_str(), remove_one, kDescriptors, FTW_DEPTH | FTW_PHYS);
}

std::optional<std::uint64_t> file_bytes(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(found.st_size);
}

std::uint64_t occupied_bytes(const std::string& folder) {
  FileIds seen;
  return add_files(folder, seen);
}

}  // namespace ddprun
