#include "common/system/user_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "common/system/descriptors.h"
#include "common/system/secrets.h"
#include "common/text/figures.h"

namespace ddprun {
namespace {

constexpr int kLinksMax = 40;      // As the kernel follows.
constexpr int kPatienceMs = 5000;  // For the reader of a pipe, between two pieces.
// A pipe that is ready takes as much without waiting.
constexpr std::size_t kPieceMax = PIPE_BUF;
constexpr mode_t kPermissions = 07777;
constexpr std::size_t kAsideBytes = 8;

// What a path leads to.
struct Target {
  enum class Kind {
    kAbsent,      // No file yet; its folder may be there.
    kRegular,     //
    kDescriptor,  // `fd` of this process.
    kForeign,     // Another process's descriptor, by /proc: opened, and written behind its end.
    kStream,      // A pipe or a character device.
  };
  Kind kind = Kind::kAbsent;
  std::string path{};  // Without links at its end.
  int fd = -1;
  struct stat status {};
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string real(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(::realpath(path.c_str(), nullptr),
                                                          &std::free);
  return found ? found.get() : "";
}

bool is_on_proc(const std::string& folder) {
  struct statfs system {};
  return ::statfs(folder.c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

// The number of /proc/self/fd/N; -1: it is none of this process's.
int own_descriptor(const std::string& path) {
  const std::string folder = real(folder_of(path));
  if (folder.empty()) return -1;
  if (folder != real("/proc/self/fd") && folder != real("/proc/thread-self/fd")) return -1;
  return as_number<int>(path.substr(path.rfind('/') + 1)).value_or(-1);
}

Result<Target> descriptor_at(const std::string& path) {
  const int fd = own_descriptor(path);
  if (fd < 0) return Target{.kind = Target::Kind::kForeign, .path = path};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
    if (flags >= 0) errno = EBADF;
    return errno_failure("cannot be written: descriptor " + std::to_string(fd));
  }
  return Target{.kind = Target::Kind::kDescriptor, .path = path, .fd = fd};
}

Failure refused(const std::string& what) { return {Errc::kBadOption, "is a " + what}; }

Result<Target> target_of_kind(Target target) {
  const mode_t mode = target.status.st_mode;
  if (S_ISDIR(mode)) return refused("folder");
  if (S_ISBLK(mode)) return refused("disk");
  if (S_ISSOCK(mode)) return refused("socket");
  target.kind = S_ISREG(mode) ? Target::Kind::kRegular : Target::Kind::kStream;
  return target;
}

Result<std::string> link_text(const std::string& path) {
  std::string text(PATH_MAX, '\0');
  const ssize_t size = ::readlink(path.c_str(), text.data(), text.size());
  if (size <= 0) return errno_failure("cannot be written: " + path);
  text.resize(static_cast<std::size_t>(size));
  return text.front() == '/' ? text : folder_of(path) + "/" + text;
}

// If the kernel would not follow a link (one that another user has put into /tmp), neither do we.
Result<Target> target_of(const std::string& path) {
  const UniqueFd probe(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!probe && errno != ENOENT) return errno_failure("cannot be written: " + path);
  Target target{.path = path};
  for (int links = 0; links <= kLinksMax; ++links) {
    if (::lstat(target.path.c_str(), &target.status) != 0) {
      const bool is_absent = errno == ENOENT && !is_on_proc(folder_of(target.path));
      if (is_absent) return target;
      return errno_failure("cannot be written: " + target.path);
    }
    if (!S_ISLNK(target.status.st_mode)) return target_of_kind(std::move(target));
    if (is_on_proc(folder_of(target.path))) return descriptor_at(target.path);
    auto next = link_text(target.path);
    if (!next) return next.error();
    target.path = std::move(*next);
  }
  errno = ELOOP;
  return errno_failure("cannot be written: " + path);
}

bool may_write(const std::string& path, int how) {
  return ::faccessat(AT_FDCWD, path.c_str(), how, AT_EACCESS) == 0;
}

Result<void> write_text(int fd, std::string_view text, const std::string& path) {
  if (!write_all(fd, text)) return errno_failure("writing " + path);
  return {};
}

// To a reader that may stand still: in pieces, each once there is room.
Result<void> write_stream(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    const int found = ::poll(&ready, 1, kPatienceMs);
    if (found < 0 && errno == EINTR) continue;
    if (found == 0) errno = ETIMEDOUT;
    if (found <= 0) return errno_failure("writing " + path + ", whose reader does not read");
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kPieceMax));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return errno_failure("writing " + path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Anything but a regular file is not created and not cut.
Result<void> open_stream(const Target& target, std::string_view text) {
  const bool foreign = target.kind == Target::Kind::kForeign;
  const UniqueFd file(::open(target.path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC |
                                                      (foreign ? O_APPEND : O_NOFOLLOW)));
  if (!file && errno == ENXIO)
    return errno_failure("opening " + target.path + ", which has no reader");
  if (!file) return errno_failure("opening " + target.path);
  return write_stream(file.get(), text, target.path);
}

// A mount point, or in a folder that is not ours.
Result<void> write_in_place(const std::string& path, std::string_view text) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return errno_failure("opening " + path);
  auto written = write_text(file.get(), text, path);
  if (!written && ::ftruncate(file.get(), 0) != 0) return written;
  return written;
}

bool must_stay(int error) {
  return error == EBUSY || error == EACCES || error == EPERM || error == EROFS || error == EXDEV;
}

Result<void> write_regular(const Target& target, std::string_view text) {
  const std::string folder = folder_of(target.path);
  AsideOptions options{.aside = folder + "/.ddprun-" + random_hex(kAsideBytes)};
  const bool exists = target.kind == Target::Kind::kRegular;
  if (exists) {
    options.mode = target.status.st_mode & kPermissions;
    if (target.status.st_uid != ::geteuid()) options.owner = target.status.st_uid;
    if (target.status.st_gid != ::getegid()) options.group = target.status.st_gid;
  }
  auto replaced = write_aside(target.path, text, options);
  if (replaced || !exists || !must_stay(replaced.error().code.value())) return replaced;
  return write_in_place(target.path, text);
}

}  // namespace

Result<void> write_aside(const std::string& path, std::string_view text,
                         const AsideOptions& options) {
  const std::string& aside = options.aside;
  const UniqueFd file(
      ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.mode & 0600));
  if (!file) return errno_failure("opening " + aside);
  Result<void> written = write_text(file.get(), text, path);
  // The owner cannot always be kept; the permissions always can.
  if (written && (options.owner + 1 != 0 || options.group + 1 != 0)) {
    if (::fchown(file.get(), options.owner, options.group) != 0) errno = 0;
  }
  if (written && ::fchmod(file.get(), options.mode) != 0) {
    written = errno_failure("setting the permissions of " + aside);
  }
  if (written && options.sync && ::fsync(file.get()) != 0) {
    written = errno_failure("syncing " + aside);
  }
  if (written && std::rename(aside.c_str(), path.c_str()) != 0) {
    written = errno_failure("renaming " + aside + " to " + path);
  }
  if (!written) ::unlink(aside.c_str());
  return written;
}

Result<void> check_user_file(const std::string& path) {
  const auto target = target_of(path);
  if (!target) return target.error();
  using Kind = Target::Kind;
  if (target->kind == Kind::kDescriptor || target->kind == Kind::kForeign) return {};
  const bool exists = target->kind != Kind::kAbsent;
  const bool itself = exists && may_write(target->path, W_OK);
  if (itself) return {};
  if (target->kind == Kind::kStream) return errno_failure("cannot be written: " + target->path);
  const std::string folder = folder_of(target->path);
  if (!may_write(folder, W_OK | X_OK)) return errno_failure("cannot be written: " + folder);
  return {};
}

void clear_user_file(const std::string& path) {
  const auto target = target_of(path);
  if (!target || target->kind != Target::Kind::kRegular) return;
  if (::unlink(target->path.c_str()) == 0 || !must_stay(errno)) return;
  (void)write_in_place(target->path, "");
}

Result<void> write_user_file(const std::string& path, std::string_view text) {
  const auto target = target_of(path);
  if (!target) return Failure{target.error().code, path + " " + target.error().context};
  switch (target->kind) {
    case Target::Kind::kAbsent:
    case Target::Kind::kRegular: return write_regular(*target, text);
    case Target::Kind::kDescriptor: return write_stream(target->fd, text, path);
    case Target::Kind::kForeign:
    case Target::Kind::kStream: break;
  }
  return open_stream(*target, text);
}

bool replaces_user_file(const std::string& path) {
  const auto target = target_of(path);
  return target &&
         (target->kind == Target::Kind::kAbsent || target->kind == Target::Kind::kRegular);
}

std::optional<std::string> read_regular_end(const std::string& path, std::size_t bytes_max) {
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const auto size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  std::string text(std::min(bytes_max, size), '\0');
  std::size_t got = 0;
  const std::size_t begin = size - text.size();
  while (got < text.size()) {
    const ssize_t n =
        ::pread(file.get(), text.data() + got, text.size() - got, static_cast<off_t>(begin + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  text.resize(got);
  return text;
}

}  // namespace ddprun
