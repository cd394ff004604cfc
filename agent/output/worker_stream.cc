#include "agent/output/worker_stream.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr auto kPromptAfter = std::chrono::milliseconds(50);
constexpr std::size_t kCloseBytesMax = std::size_t{4} << 20;  // More than any pipe holds.

}  // namespace

WorkerStream::WorkerStream(boost::asio::io_context& loop, UniqueFd pipe, StreamTargets targets,
                           std::string& scratch)
    : pipe_(loop), prompt_timer_(loop), targets_(std::move(targets)), scratch_(scratch) {
  DDPRUN_ASSERT(pipe && !scratch_.empty() && (targets_.writer || !targets_.file));
  pipe_.assign(pipe.release());
  pipe_.non_blocking(true);
}

void WorkerStream::start(std::function<void()> on_closed) {
  DDPRUN_ASSERT(!on_closed_ && !closed());
  on_closed_ = std::move(on_closed);
  wait();
}

void WorkerStream::set_origin(LineOrigin origin) {
  if (closed()) return;
  targets_.prefix = origin.prefix;
  if (!targets_.console) return;
  targets_.console->leave(targets_.source);
  targets_.source = targets_.console->enter(std::move(origin));
}

void WorkerStream::wait() {
  pipe_.async_wait(stream_descriptor::wait_read,
                   [this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
                     if (!error && alive.lock()) read_turn();
                   });
}

bool WorkerStream::held_back() const {
  return (targets_.console && targets_.console->holding()) ||
         (targets_.writer && targets_.writer->holding());
}

void WorkerStream::resume() {
  if (!paused_ || closed() || held_back()) return;
  paused_ = false;
  if (close_early_) return close_now();
  wait();
}

// One read and then the next stream's turn.
void WorkerStream::read_turn() {
  if (closed() || paused_) return;
  paused_ = held_back();
  if (paused_) return;
  std::size_t bytes = 0;
  if (read_once(bytes) == Got::kEnd) return close();
  if (targets_.console) targets_.console->write_out();
  show_prompt_later();
  paused_ = held_back();
  if (!paused_) wait();
}

// A line that is not finished soon may be a prompt, which is to be seen while the worker waits.
void WorkerStream::show_prompt_later() {
  prompt_timer_.cancel();
  if (!targets_.console || !targets_.console->shows_progress()) return;
  const std::size_t size = splitter_.unfinished().size();
  if (size == 0) return;
  prompt_timer_.expires_after(kPromptAfter);
  prompt_timer_.async_wait(
      [this, size, alive = std::weak_ptr(alive_)](boost::system::error_code ec) {
        if (ec || !alive.lock() || closed() || splitter_.unfinished().size() != size) return;
        targets_.console->prompt(targets_.source, splitter_.unfinished());
        targets_.console->write_out();
      });
}

WorkerStream::Got WorkerStream::read_once(std::size_t& bytes) {
  DDPRUN_ASSERT(!closed());
  const ssize_t got = ::read(pipe_.native_handle(), scratch_.data(), scratch_.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothingYet;
  if (got <= 0) return Got::kEnd;
  bytes += static_cast<std::size_t>(got);
  const std::string_view chunk(scratch_.data(), static_cast<std::size_t>(got));
  if (targets_.file) targets_.writer->write(targets_.file, chunk);
  splitter_.feed(chunk, *this);
  return Got::kSome;
}

void WorkerStream::close_early() {
  if (!held_back()) return close_now();
  paused_ = close_early_ = true;
}

void WorkerStream::close_now() {
  if (closed()) return;
  std::size_t bytes = 0;
  while (bytes < kCloseBytesMax && read_once(bytes) == Got::kSome) {
  }
  close();
}

void WorkerStream::close() {
  DDPRUN_ASSERT(!closed());
  prompt_timer_.cancel();
  splitter_.finish(*this);
  pipe_.close();
  if (targets_.file) targets_.writer->close(targets_.file);
  if (targets_.console) {
    targets_.console->leave(targets_.source);
    targets_.console->write_out();
  }
  if (on_closed_) std::exchange(on_closed_, nullptr)();
}

void WorkerStream::on_line(std::string_view line) {
  tail_.add(line);
  in_long_line_ = false;
  if (targets_.console) {
    targets_.console->prompt_over(targets_.source);
    targets_.console->line(targets_.source, line, /*whole=*/true);
  }
  if (targets_.console && targets_.shown) last_shown_ = ++*targets_.shown;
  if (targets_.filtered) duplicate(line);
}

void WorkerStream::on_piece(std::string_view piece) {
  // The middle of a line of many pieces would drive out its beginning.
  if (!std::exchange(in_long_line_, true)) tail_.add(piece);
  if (targets_.console) {
    targets_.console->prompt_over(targets_.source);
    targets_.console->line(targets_.source, piece, /*whole=*/false);
  }
  if (targets_.filtered) duplicate(piece);
}

void WorkerStream::on_progress(std::string_view state) {
  if (!targets_.console) return;
  targets_.console->prompt_over(targets_.source);
  targets_.console->progress(targets_.source, state);
}

void WorkerStream::duplicate(std::string_view line) {
  DDPRUN_ASSERT(targets_.writer && targets_.filtered);
  for (const std::string& needle : targets_.needles) {
    if (line.find(needle) == std::string_view::npos) continue;
    targets_.writer->write(targets_.filtered, targets_.prefix + std::string(line) + "\n");
    return;
  }
}

}  // namespace ddprun::agent
