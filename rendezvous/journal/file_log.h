#pragma once
// The journal as a file of one folder, which one daemon at a time may use. What was appended
// survives the death of the daemon, and with `sync` that of the machine.
//
// A disk that is full, or fails, costs no record and no run: what does not fit waits here, whatever
// a failed write left is cut off, and it is tried again until it fits.
//
//   FOLDER/journal      the records; only ever appended to, or replaced as a whole by a rename
//   FOLDER/journal.new  a snapshot on its way there; without meaning after a crash
//   FOLDER/lock         locked while a daemon lives, holds its process id

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {

// The few operations on files that file_log is made of, so that a test can let the 1st,
// the 2nd, ... of them fail or be the last thing that a daemon does.
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

Result<std::string> read_file(int fd);

struct FileLogOptions {
  std::string folder;
  bool sync = false;                                // Wait for the disk with each append.
  std::size_t compact_at = std::size_t{4} << 20;    // No snapshot is wanted below.
  std::size_t compact_factor = 4;                   // ... nor below this many snapshots.
  Milliseconds retry_first{100}, retry_max{5'000};  // When the disk is full.
  std::shared_ptr<FileOperations> files = std::make_shared<FileOperations>();
};

class FileLog : public RecordLog {
 public:
  // Makes the folder if it is not there, locks it, and reads the journal.
  static Result<std::unique_ptr<FileLog>> open(boost::asio::io_context& io, FileLogOptions options);

  // What open() found. Once; it may be large.
  Journal take_journal() { return std::move(journal_); }

  void append(std::string records, std::function<void()> done) override;
  void replace(std::string snapshot) override;
  bool wants_snapshot() const override;
  std::optional<std::string> trouble() const override { return trouble_; }

 private:
  struct Pending {
    std::string records;
    std::function<void()> done;
  };

  FileLog(boost::asio::io_context& io, FileLogOptions options)
      : options_(std::move(options)), retry_timer_(io), pause_(options_.retry_first) {}

  std::string path() const { return options_.folder + "/journal"; }
  Result<void> lock();
  Result<void> read();
  Result<void> begin();
  Result<void> write(std::string_view records);
  Result<UniqueFd> write_new(std::string_view bytes);
  Result<void> sync_folder();
  void write_pending();
  void retry_later(const Failure& why);

  FileLogOptions options_;
  UniqueFd lock_, fd_;
  Journal journal_;
  std::size_t size_ = 0;  // What is whole; the file may be longer after a failed write.
  bool torn_ = false;     // It may be, and has to be cut to size_ first.
  std::size_t snapshot_size_ = 0;
  std::size_t declined_at_ = 0;  // No room for a snapshot at this size of the journal.
  bool old_format_ = false;
  bool folder_unsynced_ = false;
  std::deque<Pending> pending_;
  bool writing_ = false;
  boost::asio::steady_timer retry_timer_;
  Milliseconds pause_;
  std::optional<std::string> trouble_;
};

}  // namespace ddprun::rendezvous
