#pragma once
// Standard output or error of one worker: the reading end of its pipe, and the destinations of its
// lines: our console, files, the ring of last lines. Owned by Output.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/lines/lines.h"
#include "agent/output/console.h"
#include "agent/output/log_files.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

// Where lines go. Every pointer may be null.
struct StreamTargets {
  ConsoleLines* console = nullptr;
  int source = 0;                  // What console->enter() has returned.
  std::uint64_t* shown = nullptr;  // Counts the lines that all streams give to consoles.
  LogWriter* writer = nullptr;     // Of the two files.
  LogWriter::StreamPtr file;       // Gets the bytes as they are.
  LogWriter::StreamPtr filtered;  // Gets the lines that hold one of the needles, behind the prefix.
  std::vector<std::string> needles;
  std::string prefix;
};

class WorkerStream : private LineSink {
 public:
  // `scratch` is what is read into; shared by all streams of the loop.
  WorkerStream(boost::asio::io_context& loop, UniqueFd pipe, StreamTargets targets,
               std::string& scratch);

  // Reads until the end of the stream; then, once, `on_closed`.
  void start(std::function<void()> on_closed);

  // New lines get this origin's prefix; lines that still wait keep the old one.
  void set_origin(LineOrigin origin);

  // The console has room again.
  void resume();

  // Takes what is in the pipe by now and closes it, even if a process still holds its other end:
  // close_early() as soon as the console does not hold us back, close_now() at once.
  void close_early();
  void close_now();

  bool closed() const { return !pipe_.is_open(); }
  const TailRing& tail() const { return tail_; }
  // What the count of shown lines was after its last one; nothing if they go to no console.
  std::optional<std::uint64_t> last_shown() const { return last_shown_; }

 private:
  enum class Got { kSome, kNothingYet, kEnd };

  bool held_back() const;
  void show_prompt_later();
  void wait();
  void read_turn();
  Got read_once(std::size_t& bytes);
  void duplicate(std::string_view line);
  void close();
  void on_line(std::string_view line) override;
  void on_piece(std::string_view piece) override;
  void on_progress(std::string_view state) override;

  boost::asio::posix::stream_descriptor pipe_;
  boost::asio::steady_timer prompt_timer_;
  StreamTargets targets_;
  std::string& scratch_;
  LineSplitter splitter_;
  TailRing tail_;
  bool in_long_line_ = false;  // A piece of it has come, and more follows.
  std::function<void()> on_closed_;
  std::optional<std::uint64_t> last_shown_;
  bool paused_ = false;       // Waiting for the console.
  bool close_early_ = false;  // And then to be closed.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
