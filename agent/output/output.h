#pragma once
// The whole output of workers, from their pipes to our standard output, standard error and files:
// whole lines, in order within a stream, each with its worker's prefix. A slow or closed reader
// never stops a worker, see console_queue.h. Owned by the agent; all on its loop.
//
// For each worker: open(), spawn with the ends it returns, drop the ends, exited() once it has been
// reaped, on_drained when its last line has been taken over.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/lines/lines.h"
#include "agent/output/console.h"
#include "agent/output/log_files.h"
#include "agent/output/worker_stream.h"
#include "agent/workers/child_start.h"

namespace ddprun::agent {

struct OutputOptions : OutputChoice {
  std::string role = "default";
  std::string hostname = {};
  ConsoleLinesOptions lines = {};
  LogWriterOptions writer = {};
  LogFolder logs = {};
  int stdout_fd = 1;
  int stderr_fd = 2;
  std::size_t queue_bytes = std::size_t{4} << 20;
  std::chrono::milliseconds hold_max{100};
  std::chrono::milliseconds eof_wait{
      200};  // After its exit: a grandchild may hold a worker's pipe.
};

struct OutputWorker {
  int local_rank = 0;
  int rank = 0;
  int restart_count = 0;
};

class Output {
 public:
  // Ignores SIGPIPE in this process.
  Output(boost::asio::io_context& loop, OutputOptions options);

  // Makes the pipes and files of one worker. Its local rank may have been used by an earlier
  // round's.
  Result<WorkerEnds> open(const OutputWorker& worker);

  // From its next line on a worker that lives is shown as that rank.
  void seated(int local_rank, int rank);

  // The worker has been reaped, or could not be spawned.
  void exited(int local_rank);

  // Its last line has been taken over: true for a local rank that was never opened.
  bool drained(int local_rank) const;
  std::function<void(int local_rank)> on_drained;  // Once for each open(), from the loop.

  // Takes over what an ended worker has in its pipes by now, and waits for no more.
  void drain(int local_rank);

  // The end of its standard error, or of its standard output if there is nothing else, until the
  // local rank is opened again.
  std::vector<std::string> last_lines(int local_rank) const;

  // The end of one of its streams, for as long; null: it was never opened.
  const TailRing* tail(int local_rank, bool is_stderr) const;

  // How many lines of workers have been shown since the last of those; nothing if they were not
  // shown where our standard error goes.
  std::optional<std::uint64_t> shown_since(int local_rank) const;

  // A line on the terminal below all lines, until the next one comes; none if our standard error is
  // not a terminal.
  void show_status(std::string_view text) { stderr_console().show_status(text); }
  void hide_status() { stderr_console().hide_status(); }
  bool shows_status() { return stderr_console().shows_status(); }

  // Writes what still waits, for at most `limit`, and gives up on a reader that takes nothing for
  // `stall_max`. Blocks: for the very end. Returns the number of bytes that were not written.
  std::size_t flush(std::chrono::milliseconds stall_max = std::chrono::seconds(2),
                    std::chrono::milliseconds limit = std::chrono::seconds(10));

  std::uint64_t dropped() const;
  int terminal_columns() const {
    return stdout_.terminal_columns();
  }  // 0: standard output is not a terminal.

 private:
  struct Worker {
    Worker(boost::asio::io_context& loop, const OutputWorker& worker)
        : facts(worker), patience(loop) {}
    void close_early();
    void close_now();

    OutputWorker facts;
    std::unique_ptr<WorkerStream> stdout_stream, stderr_stream;
    boost::asio::steady_timer patience;
    bool exited = false;
    bool reported = false;
  };
  // Where one stream of one worker goes.
  struct Route {
    bool console = false;
    bool shown = false;  // Would go to the console, but for its file.
    bool file = false;
    bool teed = false;
    bool is_stderr = false;
  };

  std::string prefix_of(const OutputWorker& worker) const;
  LineOrigin origin_of(const OutputWorker& worker, bool is_stderr, std::string prefix) const;
  Route route(const OutputWorker& worker, bool is_stderr) const;
  Result<UniqueFd> open_stream(const OutputWorker& worker, Route route, std::string_view folder,
                               std::unique_ptr<WorkerStream>& stream);
  void goes_without_file(const Failure& why);
  void close_previous(int local_rank);
  void stream_closed(int local_rank);
  void resume_readers();
  Console& stderr_console() { return stderr_ ? *stderr_ : stdout_; }
  ConsoleLines& lines_of(bool is_stderr) {
    return is_stderr && stderr_lines_ ? *stderr_lines_ : stdout_lines_;
  }
  Result<LogWriter::StreamPtr> filtered_file(int restart_count, bool is_stderr);
  Result<void> open_files(const OutputWorker& worker, Route route, std::string_view folder,
                          StreamTargets& targets);

  boost::asio::io_context& loop_;
  OutputOptions options_;
  Console stdout_;
  std::unique_ptr<Console> stderr_;  // Null if it is the same file as standard output.
  ConsoleLines stdout_lines_;
  std::unique_ptr<ConsoleLines> stderr_lines_;  // Null with stderr_.
  LogWriter writer_;
  struct Filtered {
    int restart_count = -1;
    LogWriter::StreamPtr file;
  };
  Filtered filtered_[2];  // Of standard output and error.
  bool warned_ = false;   // Of files that could not be made.
  std::string scratch_;
  std::uint64_t shown_ = 0;                         // Lines, on either console.
  std::map<int, std::shared_ptr<Worker>> workers_;  // By local rank.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun::agent
