#pragma once
// Writes to our own standard output or error without ever blocking the loop and without changing
// the descriptor that we share with the shell and others. Owned by Output.
//
// Pipes and terminals are opened a second time, non-blocking, through /proc/self/fd; where that is
// not allowed we write at most PIPE_BUF bytes, each time after asking whether they fit. Sockets are
// asked not to block. Regular files, /dev/null and the like are written to directly.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "agent/lines/console_queue.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

struct ConsoleOptions {
  std::string name = "standard output";
  std::size_t queue_bytes = std::size_t{4} << 20;
  std::chrono::milliseconds hold_max{
      100};  // How long a full queue may stop the reading of workers.
};

class Console {
 public:
  Console(boost::asio::io_context& loop, int fd, ConsoleOptions options);

  void line(std::string_view prefix, std::string_view text, std::string_view suffix = {});
  void progress(std::string_view prefix, std::string_view text);  // Nothing unless a terminal.

  // A line below all others, until the next one comes; left out where a worker has a progress bar.
  // `text` fits the terminal. Nothing unless a terminal.
  void show_status(std::string_view text);
  void hide_status();
  bool shows_status() const { return status_shown_ && queue_.shows_transient(); }

  // Writes what fits, and goes on by itself as soon as more does. Call it after a batch of lines.
  void write_out();

  // Blocks until everything is written, the reader has taken nothing for `stall_max`, or `limit` is
  // over. Returns how many bytes remain unwritten. For the very end.
  std::size_t flush(std::chrono::milliseconds stall_max, std::chrono::milliseconds limit);

  bool holding() const { return queue_.state() == ConsoleQueue::State::kHolding; }
  bool broken() const { return broken_; }  // The reader is gone; lines vanish.
  std::uint64_t dropped() const { return queue_.dropped(); }
  int terminal_columns() const { return columns_; }  // 0 if not a terminal.

  std::function<void()> on_hold_over;  // holding() has become false.

 private:
  enum class Kind { kDirect, kReopened, kShared, kSocket };

  Kind open(int fd);
  bool may_write() const;
  long write_some(std::string_view bytes) const;
  bool write_until_full();
  void fail(int error);
  void wait_for_room();
  void start_hold();
  void note_hold();

  ConsoleOptions options_;
  ConsoleQueue queue_;
  UniqueFd direct_;                                   // kDirect
  boost::asio::posix::stream_descriptor descriptor_;  // All other kinds.
  boost::asio::steady_timer hold_timer_;
  Kind kind_;
  int columns_ = 0;
  bool status_shown_ = false;  // The last transient text is the status.
  TimePoint progress_at_{};    // When a worker last had a progress bar.
  bool waiting_ = false;
  bool was_holding_ = false;
  bool broken_ = false;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
