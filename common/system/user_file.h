#pragma once
// The one way to write a file at a path that a user has given (--error-file, --report-html,
// TORCHELASTIC_ERROR_FILE, `ddprunctl report --html`), and to read one that a program outside
// wrote.
//
//   a regular file, or none     written aside and renamed: a reader finds all of it or none
//   one that cannot be renamed  (a mount point, a folder that is read-only) written where it is
//   a symbolic link             followed; the link itself is never replaced or removed
//   /dev/stdout, /dev/fd/N      written to that descriptor, behind what it has already
//   a pipe, a device            opened without waiting; a pipe without a reader is a failure
//   a folder, a socket, a disk  refused
//
// Nothing in here waits for another program for longer than a few seconds. The folder of records
// (record_folder.h) writes its own files aside by write_aside().

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun {

// Whether `path` could be written, as far as can be found out without changing anything. The
// failure's context continues "FLAG PATH ".
Result<void> check_user_file(const std::string& path);

// Removes what an earlier run has left, if `path` leads to a regular file: its absence is an
// answer.
void clear_user_file(const std::string& path);

// Replaces all of it. A new file can be read by this user only, for what is written may quote a
// command line; a file that is there keeps its owner and its permissions.
Result<void> write_user_file(const std::string& path, std::string_view text);

// Whether a second text replaces the first: false for pipes, devices and descriptors.
bool replaces_user_file(const std::string& path);

struct AsideOptions {
  std::string aside;  // Beside `path`; not there yet. Gone if this fails.
  mode_t mode = 0600;
  uid_t owner = static_cast<uid_t>(-1);  // -1: this process's.
  gid_t group = static_cast<gid_t>(-1);
  bool sync = false;  // Survives the machine's end, but for the name: that is the folder's.
};
// Writes options.aside and renames it to `path`.
Result<void> write_aside(const std::string& path, std::string_view text,
                         const AsideOptions& options);

// The last `bytes_max` bytes of a file that a program outside may have made into anything: nothing
// unless it is a regular file, not a link to one.
std::optional<std::string> read_regular_end(const std::string& path, std::size_t bytes_max);

}  // namespace ddprun
