#include "rendezvous/journal/file_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/assert.h"
#include "common/system/folder.h"
#include "common/system/log.h"

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

namespace {

Failure about(const std::string& path, const Failure& why, const std::string& advice) {
  return {why.code, "the journal in " + path + " cannot be used: " + why.context + advice};
}

std::string advice_for(const Failure& why) {
  using enum std::errc;
  if (why.code == permission_denied || why.code == read_only_file_system) {
    return " (--state-dir must be a folder that this user may write)";
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<FileLog>> FileLog::open(boost::asio::io_context& io,
                                               FileLogOptions options) {
  std::unique_ptr<FileLog> log(new FileLog(io, std::move(options)));
  const std::string& folder = log->options_.folder;
  for (const auto& step :
       {+[](FileLog& self) { return make_private_folders(self.options_.folder); },
        +[](FileLog& self) { return self.lock(); }, +[](FileLog& self) { return self.read(); }}) {
    const auto done = step(*log);
    if (!done) return about(folder, done.error(), advice_for(done.error()));
  }
  if (const auto begun = log->begin(); !begun) log->retry_later(begun.error());
  return log;
}

// Apart from the journal itself, which a snapshot replaces under its name.
Result<void> FileLog::lock() {
  const std::string path = options_.folder + "/lock";
  auto fd = options_.files->open(path, O_RDWR | O_CREAT);
  if (!fd) return fd.error();
  lock_ = std::move(*fd);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    const Failure why = errno_failure("locking " + path);
    auto holder = read_file(lock_.get());
    const std::string pid = holder && !holder->empty() ? ", process " + *holder + "," : "";
    return Failure{why.code,
                   "another ddprun-rendezvous" + pid +
                       " is using it; end that one, or give this one another --state-dir"};
  }
  // For people only; a full disk must not keep us from starting.
  if (options_.files->cut(lock_.get(), 0)) {
    (void)options_.files->append(lock_.get(), std::to_string(::getpid()));
  }
  return {};
}

Result<void> FileLog::read() {
  auto fd = options_.files->open(path(), O_RDWR | O_CREAT | O_APPEND);
  if (!fd) return fd.error();
  fd_ = std::move(*fd);
  const auto bytes = read_file(fd_.get());
  if (!bytes) return bytes.error();
  journal_ = decode_journal(*bytes);
  if (journal_.refusal) return Failure{Errc::kBadMessage, *journal_.refusal};
  size_ = journal_.bytes_good;
  torn_ = size_ < bytes->size();
  old_format_ = size_ > 0 && journal_.format < kJournalFormat;
  if (torn_) {
    log::warning("the journal " + path() + " ends in a damaged record; its last " +
                 std::to_string(bytes->size() - size_) + " bytes are cut off");
  }
  return {};
}

Result<void> FileLog::begin() {
  if (size_ > 0) return write("");
  return write(journal_header());
}

// Either all of `records` is there afterwards, or as good as nothing.
Result<void> FileLog::write(std::string_view records) {
  DDPRUN_ASSERT(fd_);
  FileOperations& files = *options_.files;
  if (torn_) {
    if (auto cut = files.cut(fd_.get(), size_); !cut) return cut.error();
    torn_ = false;
  }
  if (records.empty()) return {};
  if (options_.sync && folder_unsynced_) {
    if (auto synced = sync_folder(); !synced) return synced.error();
  }
  torn_ = true;
  if (auto written = files.append(fd_.get(), records); !written) return written.error();
  if (options_.sync) {
    // After a failed sync it is unknown what the disk has: everything is written again, not only
    // synced.
    if (auto synced = files.sync(fd_.get()); !synced) return synced.error();
  }
  torn_ = false;
  size_ += records.size();
  return {};
}

void FileLog::append(std::string records, std::function<void()> done) {
  pending_.push_back({std::move(records), std::move(done)});
  if (!trouble_ && !writing_) write_pending();
}

void FileLog::write_pending() {
  DDPRUN_ASSERT(!writing_);
  writing_ = true;  // What `done` appends is written after it has returned.
  while (!pending_.empty()) {
    if (const auto written = size_ == 0 ? begin() : Result<void>(); !written) {
      writing_ = false;
      return retry_later(written.error());
    }
    if (const auto written = write(pending_.front().records); !written) {
      writing_ = false;
      return retry_later(written.error());
    }
    const Pending written = std::move(pending_.front());
    pending_.pop_front();
    if (written.done) written.done();
  }
  writing_ = false;
  pause_ = options_.retry_first;
  if (trouble_) log::info("the journal can be written again; continuing");
  trouble_.reset();
}

void FileLog::retry_later(const Failure& why) {
  // What a failed write has left would otherwise keep the last free bytes of the disk.
  (void)write("");
  if (!trouble_) {
    trouble_ = "the journal " + path() + " cannot be written: " + to_string(why);
    log::error(*trouble_ + "; workers continue, and nothing is decided until it can be written");
  }
  retry_timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, options_.retry_max);
  retry_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) write_pending();
  });
}

bool FileLog::wants_snapshot() const {
  if (trouble_) return false;
  if (old_format_) return size_ > declined_at_;
  return size_ >=
         std::max({options_.compact_at + declined_at_, snapshot_size_ + options_.compact_at,
                   options_.compact_factor * snapshot_size_});
}

// The snapshot is durable under another name before it gets the journal's: at no moment is there
// less than one whole journal under that name.
Result<UniqueFd> FileLog::write_new(std::string_view bytes) {
  FileOperations& files = *options_.files;
  const std::string name = path() + ".new";
  auto fd = files.open(name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND);
  if (!fd) return fd.error();
  if (auto written = files.append(fd->get(), bytes); !written) {
    (void)files.cut(fd->get(), 0);
    return written.error();
  }
  if (auto synced = files.sync(fd->get()); !synced) return synced.error();
  if (auto renamed = files.rename(name, path()); !renamed) return renamed.error();
  return fd;
}

void FileLog::replace(std::string snapshot) {
  const std::string bytes = journal_header() + snapshot;
  auto fd = write_new(bytes);
  if (!fd) {
    log::warning("the journal " + path() + " stays as long as it is: " + to_string(fd.error()));
    declined_at_ = size_;
    return;
  }
  fd_ = std::move(*fd);
  size_ = snapshot_size_ = bytes.size();
  torn_ = old_format_ = false;
  declined_at_ = 0;
  for (Pending& pending : pending_) pending.records.clear();  // They are part of it.
  folder_unsynced_ = true;
  (void)sync_folder();
}

// Without this the old journal may come back with the machine: whole, but without what is appended
// to the new one.
Result<void> FileLog::sync_folder() {
  auto folder = options_.files->open(options_.folder, O_RDONLY | O_DIRECTORY);
  if (!folder) return folder.error();
  if (auto synced = options_.files->sync(folder->get()); !synced) return synced.error();
  folder_unsynced_ = false;
  return {};
}

}  // namespace ddprun::rendezvous
