#pragma once
// Writes to our own standard output or error without ever blocking the loop and without changing
// the descriptor that we share with the shell and others. Owned by Output.
//
// Pipes and terminals are opened a second time, non-blocking, through /proc/self/fd; if that is not
// allowed, we write at most PIPE_BUF bytes, each time after checking whether they fit. Sockets are
// asked not to block. Regular files, /dev/null and the like are written to directly.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/lines/console_queue.h"
#include "agent/lines/lines.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

// What may be shown on our standard error. Used by Agent for the verdict and the status line.
struct TerminalFacts {
  bool can_move = false;  // A terminal, and text on it may be overwritten: no CI, not a dumb one.
  bool colour = false;
  bool utf8 = false;
  int columns = 80;
};

TerminalFacts read_terminal();

// Whether the terminal is that of the process `launcher` at this moment, not of the shell that has
// put it into the background or of another program.
bool has_foreground(int launcher);

// Shows the user what is being waited for, and for how long yet: one line that is rewritten each
// second on a terminal; elsewhere a line when something changed, once per second at most, and now
// and then. Prints nothing in the first second, so that a run that starts at once starts silently.
class WaitingLine {
 public:
  explicit WaitingLine(boost::asio::io_context& loop);

  // `what` without a full stop: "waiting for nodes: 1 of 2 here (hostA)". `left`: until it is given
  // up; 0: it is not, as for a spare.
  void show(std::string what, Duration left);
  void done();
  bool active() const { return active_; }
  bool on_terminal() const { return terminal_; }

 private:
  void refresh();
  void print();

  boost::asio::steady_timer timer_;
  const bool terminal_;
  bool active_ = false;
  bool printed_ = false;  // The terminal's line holds our text.
  std::string what_;
  std::string what_printed_;
  TimePoint began_{}, printed_at_{};  // printed_at_ of what_printed_.
  std::optional<TimePoint> ends_;
};

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

  // A line that a worker does not finish, such as a prompt: it stays below all others, in place of
  // the status, until prompt_over(). Nothing unless a terminal.
  void prompt(std::string_view prefix, std::string_view text);
  void prompt_over() { prompt_.clear(); }

  // A line below all others, until the next one comes; left out if a worker has a progress bar.
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
  std::string prompt_;         // Empty: none.
  bool waiting_ = false;
  bool was_holding_ = false;
  bool broken_ = false;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// Workers' lines on their way to one console: dressed as the user wants them, and folded if he
// wants that. Owned by Output, called by WorkerStream.
struct ConsoleLinesOptions {
  LineFormat format = LineFormat::kText;
  std::optional<Milliseconds> fold{};  // How long an equal line of another rank is waited for.
};

class ConsoleLines {
 public:
  ConsoleLines(boost::asio::io_context& loop, Console& console, ConsoleLinesOptions options);

  // A stream begins and ends. The number stands for it below.
  int enter(LineOrigin origin);
  void leave(int source);

  // `whole`: false for a piece of an over-long line that goes on.
  void line(int source, std::string_view text, bool whole);
  void progress(int source, std::string_view text);
  void prompt(int source, std::string_view text);  // What the stream leaves unfinished.
  void prompt_over(int source);

  void write_out();  // After a batch of lines.
  void close();      // Nothing waits any longer.
  bool holding() const { return console_.holding(); }
  // A terminal, on which a text may be shown that the next one overwrites.
  bool shows_progress() const {
    return console_.terminal_columns() > 0 && options_.format == LineFormat::kText;
  }

 private:
  void show(const std::set<int>& ranks, const LineOrigin& origin, std::string_view text,
            bool whole);
  void show_json(const std::set<int>& ranks, const LineOrigin& origin, std::string_view text,
                 bool whole);
  void show_folded(bool all);
  void arm();

  Console& console_;
  ConsoleLinesOptions options_;
  std::optional<LineFold> fold_;
  boost::asio::steady_timer timer_;
  std::vector<LineOrigin> sources_;
  std::vector<int> free_;         // Ids of removed streams, for reuse.
  std::vector<int> left_;         // Free as soon as none of their lines waits.
  std::optional<int> prompting_;  // The stream of the console's prompt.
  std::int64_t time_ = 0;         // Of this batch.
  std::string scratch_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
