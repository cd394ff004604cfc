#include "agent/memory/memory_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "common/assert.h"
#include "common/checksum.h"

namespace ddprun::agent::memory {
namespace {

constexpr mode_t kOwnerOnly = 0700;
constexpr std::int64_t kNanoseconds = 1'000'000'000;
constexpr std::size_t kLocksMax = 16'384;  // Descriptors of one snapshot; further files have none.

std::int64_t modified(const struct stat& status) {
  return status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec;
}

bool counts(std::string_view name) { return !name.starts_with('.') && !name.ends_with(".tmp"); }

// A file without permission to write is not, although a process may have it open. For others: a
// lease to read is granted only if no process has the file open for writing, or mapped. It is given
// back at once: a writer that opens the file meanwhile waits for microseconds.
bool is_being_written(int file) {
  constexpr mode_t kMayWrite = S_IWUSR | S_IWGRP | S_IWOTH;
  struct stat status;
  if (::fstat(file, &status) == 0 && (status.st_mode & kMayWrite) == 0) return false;
  if (::fcntl(file, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN;
  ::fcntl(file, F_SETLEASE, F_UNLCK);
  return false;
}

bool is_same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

class SnapshotTaker {
 public:
  SnapshotTaker(const std::string& folder, const std::string& into)
      : folder_(folder), into_(into) {}

  Result<Snapshot> take() {
    if (const auto taken = take(""); !taken) return taken.error();
    return std::move(snapshot_);
  }

 private:
  // What vanishes meanwhile was removed.
  Result<void> take(const std::string& prefix) {
    const std::string made = into_ + "/" + prefix;
    if (::mkdir(made.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
      return errno_failure("making " + made);
    }
    for (const std::string& name : names_in(folder_ + "/" + prefix).names) {
      const std::string path = prefix.empty() ? name : prefix + "/" + name;
      struct stat status;
      if (!counts(name) || !is_safe_path(path)) continue;
      if (::lstat((folder_ + "/" + path).c_str(), &status) != 0) continue;
      if (S_ISDIR(status.st_mode)) {
        if (const auto below = take(path); !below) return below;
      } else if (S_ISREG(status.st_mode)) {
        if (const auto added = add(path); !added) return added;
      }
    }
    return {};
  }

  Result<void> add(const std::string& path) {
    if (snapshot_.entries.size() == kFilesMax) {
      return Failure{Errc::kBadOption,
                     "copying a folder of more than " + std::to_string(kFilesMax) + " files"};
    }
    const std::string from = folder_ + "/" + path, to = into_ + "/" + path;
    UniqueFd file(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file && (errno == ENOENT || errno == ELOOP)) return {};
    if (!file) return errno_failure("opening " + from);
    // ddprun.checkpoint keeps its files open, without permission to write while they are whole, and
    // writes again into the memory of those that it needs no more, unless they are locked.
    const bool locked = ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
    if (!locked || is_being_written(file.get())) {
      snapshot_.entries.push_back({path, 0, 0, /*keep=*/true});
      return {};
    }
    if (::link(from.c_str(), to.c_str()) != 0) {
      if (errno == ENOENT) return {};
      return errno_failure("linking " + to);
    }
    struct stat opened, linked;
    if (::fstat(file.get(), &opened) != 0 || ::lstat(to.c_str(), &linked) != 0) {
      return errno_failure("looking at " + to);
    }
    if (!is_same_file(opened, linked)) {  // It was replaced meanwhile; the next snapshot has it.
      ::unlink(to.c_str());
      snapshot_.entries.push_back({path, 0, 0, /*keep=*/true});
      return {};
    }
    const auto bytes = static_cast<std::uint64_t>(linked.st_size);
    snapshot_.entries.push_back({path, bytes, modified(linked), false});
    snapshot_.bytes += bytes;
    if (snapshot_.locks.size() < kLocksMax) snapshot_.locks.push_back(std::move(file));
    return {};
  }

  const std::string folder_, into_;
  Snapshot snapshot_;
};

// All folders above `path`, below `root`.
Result<void> make_parents(const std::string& root, const std::string& path) {
  for (std::size_t slash = 0; slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = root + "/" + path.substr(0, slash);
    if (::mkdir(folder.c_str(), kOwnerOnly) != 0 && errno != EEXIST) {
      return errno_failure("making " + folder);
    }
  }
  return {};
}

}  // namespace

Result<Snapshot> take_snapshot(const std::string& folder, const std::string& into) {
  return SnapshotTaker(folder, into).take();
}

std::vector<std::string> folders_of(const std::string& folder) {
  std::vector<std::string> all{folder};
  for (const std::string& name : names_in(folder).names) {
    const std::string path = folder + "/" + name;
    struct stat status;
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
    const std::vector<std::string> below = folders_of(path);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::string Staging::part_of(const Entry& entry) const {
  const std::uint64_t name = checksum(entry.path.data(), entry.path.size(),
                                      entry.bytes ^ static_cast<std::uint64_t>(entry.modified));
  char text[2 * sizeof name + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(name));
  return workshop_ + "/part-" + text;
}

std::string Staging::new_path(const Entry& entry) const {
  return workshop_ + "/files/" + entry.path;
}

// Whether `target` had it. `same`: only if it is this very version.
Result<bool> Staging::link_older(const Entry& entry, bool same) const {
  const std::string older = target_ + "/" + entry.path;
  struct stat status;
  if (::lstat(older.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const bool is_same = static_cast<std::uint64_t>(status.st_size) == entry.bytes &&
                       modified(status) == entry.modified;
  if (same && !is_same) return false;
  if (const auto made = make_parents(workshop_ + "/files", entry.path); !made) return made.error();
  if (::link(older.c_str(), new_path(entry).c_str()) != 0) {
    return errno_failure("linking " + new_path(entry));
  }
  return true;
}

Result<std::vector<Want>> Staging::begin(std::vector<Entry> entries) {
  entries_ = std::move(entries);
  wants_.clear();
  next_ = 0;
  begun_ = true;
  part_.reset();
  remove_tree(workshop_ + "/files");
  if (const auto made = make_parents(workshop_, "files/"); !made) return made.error();
  std::set<std::string> parts;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const auto has = link_older(entry, /*same=*/!entry.keep);
    if (!has) return has.error();
    if (*has || entry.keep) continue;
    struct stat status;
    const std::string part = part_of(entry);
    const bool begun = ::lstat(part.c_str(), &status) == 0 &&
                       static_cast<std::uint64_t>(status.st_size) <= entry.bytes;
    wants_.push_back({i, begun ? static_cast<std::uint64_t>(status.st_size) : 0});
    parts.insert(part.substr(workshop_.size() + 1));
  }
  for (const std::string& name : names_in(workshop_).names) {
    if (name.starts_with("part-") && !parts.contains(name)) {
      ::unlink((workshop_ + "/" + name).c_str());
    }
  }
  return wants_;
}

Result<void> Staging::add(const Piece& piece) {
  if (next_ >= wants_.size() || piece.entry != wants_[next_].entry) {
    return Failure{Errc::kBadMessage, "receiving a piece of a file that was not asked for"};
  }
  const Entry& entry = entries_[piece.entry];
  if (!part_) {
    at_ = wants_[next_].offset;
    part_.reset(::open(part_of(entry).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!part_) return errno_failure("writing " + part_of(entry));
    if (::ftruncate(part_.get(), static_cast<off_t>(at_)) != 0) {
      return errno_failure("writing " + part_of(entry));
    }
  }
  const bool fits = piece.offset == at_ && piece.bytes.size() <= entry.bytes - at_;
  if (!fits || piece.checksum != checksum(piece.bytes.data(), piece.bytes.size())) {
    ::unlink(part_of(entry).c_str());
    return Failure{Errc::kBadMessage, "receiving " + entry.path + ", whose bytes are damaged"};
  }
  for (std::size_t done = 0; done < piece.bytes.size();) {
    const ssize_t written = ::pwrite(part_.get(), piece.bytes.data() + done,
                                     piece.bytes.size() - done, static_cast<off_t>(at_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno_failure("writing " + part_of(entry));
    done += static_cast<std::size_t>(written);
  }
  at_ += piece.bytes.size();
  return piece.last ? finish(entry) : Result<void>();
}

Result<void> Staging::finish(const Entry& entry) {
  if (at_ != entry.bytes) {
    return Failure{Errc::kBadMessage, "receiving " + entry.path + ", which is too short"};
  }
  const timespec time{entry.modified / kNanoseconds, entry.modified % kNanoseconds};
  const timespec times[2] = {time, time};
  if (::futimens(part_.get(), times) != 0) return errno_failure("writing " + part_of(entry));
  part_.reset();
  if (const auto made = make_parents(workshop_ + "/files", entry.path); !made) return made;
  if (::rename(part_of(entry).c_str(), new_path(entry).c_str()) != 0) {
    return errno_failure("moving a file to " + new_path(entry));
  }
  ++next_;
  return {};
}

Result<void> Staging::skip(std::uint64_t entry) {
  if (next_ >= wants_.size() || entry != wants_[next_].entry) {
    return Failure{Errc::kBadMessage, "leaving out a file that was not asked for"};
  }
  part_.reset();
  ::unlink(part_of(entries_[entry]).c_str());
  ++next_;
  const auto linked = link_older(entries_[entry], /*same=*/false);
  return linked ? Result<void>() : linked.error();
}

Result<Committed> Staging::commit() {
  DDPRUN_ASSERT(complete());
  const std::string files = workshop_ + "/files";
  struct stat status;
  const bool replaces = ::lstat(target_.c_str(), &status) == 0;
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, files.c_str(), AT_FDCWD, target_.c_str(), flags) != 0) {
    return errno_failure("putting a copy in place at " + target_);
  }
  remove_tree(files);
  begun_ = false;
  Committed committed;
  for (const Entry& entry : entries_) {
    if (!entry.keep) ++committed.files, committed.bytes += entry.bytes;
  }
  return committed;
}

}  // namespace ddprun::agent::memory
