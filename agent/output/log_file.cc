#include "agent/output/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace ddprun::agent {

Result<LogFile> LogFile::open(std::string path, LogRotation rotation) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return errno_failure("opening " + path);
  return LogFile(std::move(path), rotation, std::move(file),
                 static_cast<std::uint64_t>(status.st_size));
}

void LogFile::write(std::uint64_t lost_before, std::string_view bytes) {
  if (lost_before > 0) {
    skipping_ = true;
    gap_ += lost_before;
    lost_ += lost_before;
  }
  if (!close_gap(bytes)) return;
  if (rotation_.bytes == 0) return put(bytes);
  while (!bytes.empty()) {
    const std::uint64_t room = size_ < rotation_.bytes ? rotation_.bytes - size_ : 0;
    std::size_t part = bytes.size();
    if (part > room) {
      // Up to the last line that fits; a line that is under way goes on to its end.
      const std::size_t fits = bytes.substr(0, room).rfind('\n');
      if (fits != std::string_view::npos) {
        part = fits + 1;
      } else if (in_line_ || size_ == 0) {
        part = std::min(bytes.find('\n'), part - 1) + 1;
      } else {
        rotate();
        continue;
      }
    }
    put(bytes.substr(0, part));
    bytes.remove_prefix(part);
  }
}

// False if there is still a gap and nothing can be written.
bool LogFile::close_gap(std::string_view& bytes) {
  if (skipping_) {
    const std::size_t newline = bytes.find('\n');
    skipping_ = newline == std::string_view::npos;
    const std::size_t rest = skipping_ ? bytes.size() : newline + 1;
    gap_ += rest;
    lost_ += rest;
    bytes.remove_prefix(rest);
    if (skipping_) return false;
  }
  if (gap_ == 0) return true;
  const std::string note = std::string(in_line_ ? "\n" : "") + "[ddprun: " + std::to_string(gap_) +
                           " bytes were lost here]\n";
  std::string_view left = note;
  if (!put_all(left)) {
    gap_ += bytes.size();
    lost_ += bytes.size();
    skipping_ = !bytes.empty() && !bytes.ends_with('\n');
    return false;
  }
  gap_ = 0;
  return true;
}

void LogFile::put(std::string_view bytes) {
  if (put_all(bytes)) return;
  gap_ += bytes.size();
  lost_ += bytes.size();
  skipping_ = !bytes.ends_with('\n');
}

// Takes away what could be written.
bool LogFile::put_all(std::string_view& bytes) {
  while (!bytes.empty()) {
    // cppcheck-suppress invalidLifetime  // It takes a view for what it looks at.
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error_ = written < 0 ? errno : EIO;
      return false;
    }
    in_line_ = bytes[static_cast<std::size_t>(written) - 1] != '\n';
    size_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Where renaming or opening fails the file goes on growing.
void LogFile::rotate() {
  const auto numbered = [&](int n) { return n == 0 ? path_ : path_ + "." + std::to_string(n); };
  for (int n = rotation_.keep; n > 0; --n) {
    std::rename(numbered(n - 1).c_str(), numbered(n).c_str());
  }
  if (rotation_.keep == 0) ::unlink(path_.c_str());
  UniqueFd fresh(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (fresh) file_ = std::move(fresh);
  size_ = 0;
}

}  // namespace ddprun::agent
