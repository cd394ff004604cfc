#include "worker_sdk/base/folder.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <memory>

namespace ddprun::worker_sdk {

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
  return listing;
}

int make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat found {};
    if (::mkdir(part.c_str(), 0777) != 0) {
      const int error = errno;
      if (::stat(part.c_str(), &found) != 0) return error;
      if (!S_ISDIR(found.st_mode)) return ENOTDIR;
    }
    if (end == std::string::npos) return 0;
  }
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

}  // namespace ddprun::worker_sdk
