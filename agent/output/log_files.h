#pragma once
// Where workers' files go, named as torchrun names them:
//
//   <log_dir>/<run_id>_<random>/attempt_<restart>/<local_rank>/{stdout.log,stderr.log,error.json}
//   <log_dir>/<run_id>_<random>/attempt_<restart>/<local_rank>/flight_recorder.json
//   <log_dir>/<run_id>_<random>/attempt_<restart>/{filtered_stdout.log,filtered_stderr.log}
//
// Used by the agent and by Output.

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "agent/lines/lines.h"
#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

// One file of a worker's lines on disk: rotation, and what happens when the disk is full. Written
// to by LogWriter's thread only.
//
// A line is never split between two files, nor by a gap. A line reports how many bytes a gap has
// lost.
class LogFile {
 public:
  // Opens `path` for appending: a second round of the same attempt does not erase the first one's
  // lines.
  static Result<LogFile> open(std::string path, LogRotation rotation);

  // `lost_before`: bytes that should have come before these.
  void write(std::uint64_t lost_before, std::string_view bytes);

  const std::string& path() const { return path_; }
  std::uint64_t lost() const { return lost_; }
  int error() const { return error_; }  // errno of the last write that failed; 0: none has.

 private:
  LogFile(std::string path, LogRotation rotation, UniqueFd file, std::uint64_t size)
      : path_(std::move(path)), rotation_(rotation), file_(std::move(file)), size_(size) {}

  bool close_gap(std::string_view& bytes);
  void put(std::string_view bytes);
  bool put_all(std::string_view& bytes);
  void rotate();

  std::string path_;
  LogRotation rotation_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  bool in_line_ = false;    // The last byte written ends no line.
  std::uint64_t gap_ = 0;   // Lost, and not reported yet.
  bool skipping_ = false;   // What is left of a line whose beginning was lost.
  std::uint64_t lost_ = 0;  // In all.
  int error_ = 0;
};

// Writes workers' log files on a thread of its own: a disk that hangs must not stop the agent,
// because a silent agent costs the node its place in the run, nor a worker that only wants to
// print.
//
//            queue full              hold is over
//   open ───────────────► holding ───────────────► dropping
//    ▲                       │                         │
//    └───────────────────────┴─────────────────────────┘   half of it is written
//
// While holding, Output stops reading workers for a moment; while dropping, it reads on and what
// does not fit is lost and counted, and the file gets the count. Owned by Output; called on the
// loop only.
struct LogWriterOptions {
  std::size_t queue_bytes = std::size_t{8} << 20;
  Milliseconds hold_max{100};
};

class LogWriter {
 public:
  // One stream into one file; the file is closed when the last that was written is on disk.
  class Stream {
   public:
    explicit Stream(LogFile file) : file_(std::move(file)) {}

   private:
    friend class LogWriter;
    LogFile file_;               // The thread's.
    bool complained_ = false;    // The thread's.
    std::uint64_t dropped_ = 0;  // The loop's: not in the queue any more.
  };
  using StreamPtr = std::shared_ptr<Stream>;

  LogWriter(boost::asio::io_context& loop, LogWriterOptions options);
  ~LogWriter();  // Gives up on what is not written: finish() first.
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  Result<StreamPtr> open(const std::string& path, LogRotation rotation);
  void write(const StreamPtr& stream, std::string_view bytes);
  void close(StreamPtr& stream);

  bool holding() const { return holding_; }
  std::function<void()> on_hold_over;

  // Waits until everything is written, for at most `limit`. Returns the bytes that are not.
  std::size_t finish(Milliseconds limit);

  std::uint64_t dropped() const { return dropped_; }  // Bytes, for want of room in the queue.

 private:
  struct Chunk {
    StreamPtr stream;
    std::uint64_t lost_before = 0;
    std::string bytes;
  };
  // Outlives us if the thread hangs in the kernel.
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake, idle;
    std::deque<Chunk> queue;
    std::size_t bytes = 0;  // In the queue and in the thread's hand.
    bool room_wanted = false;
    bool stop = false;
    bool busy = false;
  };

  void run_thread();
  void enqueue(Chunk chunk);
  void start_hold();
  void room();

  boost::asio::io_context& loop_;
  LogWriterOptions options_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
  boost::asio::steady_timer hold_timer_;
  bool holding_ = false;
  bool dropping_ = false;
  std::uint64_t dropped_ = 0;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

class LogFolder {
 public:
  // No files at all: for --log-dir /dev/null.
  LogFolder() = default;

  // Makes <log_dir>/<run_id>_<random>; without `log_dir` under TMPDIR or /tmp.
  static Result<LogFolder> create(const std::string& log_dir, const std::string& run_id);

  // Error files alone, in an existing folder, with names that begin with `stem`. Making a folder
  // for each worker took a fifth of the whole start.
  static LogFolder for_error_files(std::string folder, std::string stem);

  bool enabled() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  // The folder of one worker of one attempt, made if need be; an error.json that an earlier round
  // of the same attempt left there is removed.
  Result<std::string> make_worker_folder(int restart_count, int local_rank) const;

  // Where files of a whole attempt go: filtered_stdout.log.
  std::string attempt_folder(int restart_count) const;

  // TORCHELASTIC_ERROR_FILE; empty without a folder.
  std::string error_file(int restart_count, int local_rank) const;

  // Where a rank may leave all that is known of what it is in; empty if nothing is kept.
  std::string dump_file(int restart_count, int local_rank) const;

 private:
  std::string worker_folder(int restart_count, int local_rank) const;

  std::string folder_;
  std::string stem_;  // Not empty: there are error files only.
};

// The last `bytes_max` bytes of the file; empty if it cannot be read.
std::string read_file_end(const std::string& path, std::size_t bytes_max);

}  // namespace ddprun::agent
