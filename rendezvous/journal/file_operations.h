#pragma once
// The few operations on files that file_log is made of, so that a test can let the 1st,
// the 2nd, ... of them fail or be the last thing that a daemon does.

#include <string>
#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::rendezvous {

class FileOperations {
 public:
  virtual ~FileOperations() = default;

  virtual Result<UniqueFd> open(const std::string& path, int flags);
  // All of `bytes` at the end of the file; a failure may leave a part of them there.
  virtual Result<void> append(int fd, std::string_view bytes);
  virtual Result<void> cut(int fd, std::size_t size);
  virtual Result<void> sync(int fd);
  virtual Result<void> rename(const std::string& from, const std::string& to);
};

// The folder and its parents, readable by this user only.
Result<void> make_folder(const std::string& path);
Result<std::string> read_file(int fd);

}  // namespace ddprun::rendezvous
