#include "common/system/folder_size.h"

#include <dirent.h>
#include <sys/stat.h>

#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace ddprun {
namespace {

using FileIds = std::set<std::pair<dev_t, ino_t>>;

std::uint64_t add_files(const std::string& folder, FileIds& seen) {
  constexpr std::uint64_t kBlock = 512;  // Of st_blocks, whatever the file system's block is.
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  std::uint64_t bytes = 0;
  while (const dirent* entry = open ? ::readdir(open.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string path = folder + "/" + entry->d_name;
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

std::uint64_t occupied_bytes(const std::string& folder) {
  FileIds seen;
  return add_files(folder, seen);
}

}  // namespace ddprun
