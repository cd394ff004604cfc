#pragma once
// Writes workers' log files on a thread of its own: a disk that hangs must not stop the agent,
// whose silence would cost the node its place in the run, nor a worker that only wants to print.
//
//            queue full              hold is over
//   open ───────────────► holding ───────────────► dropping
//    ▲                       │                         │
//    └───────────────────────┴─────────────────────────┘   half of it is written
//
// While holding, Output stops reading workers for a moment; while dropping, it reads on and what
// does not fit is lost, counted, and said in the file. Owned by Output; called on the loop only.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "agent/output/log_file.h"
#include "common/time.h"

namespace ddprun::agent {

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
  // Outlives us where the thread hangs in the kernel.
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

}  // namespace ddprun::agent
