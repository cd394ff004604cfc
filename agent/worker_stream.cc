#include "agent/worker_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddprun::agent {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr std::string_view kCutMark = " [ddprun: line above 64 KiB, goes on]";
constexpr std::size_t kCloseBytesMax = std::size_t{4} << 20;  // More than any pipe holds.

// All of it, or as much as the disk takes: logs must not stop a run.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

WorkerStream::WorkerStream(boost::asio::io_context& loop, UniqueFd pipe, StreamTargets targets,
                           std::string& scratch)
    : pipe_(loop), targets_(std::move(targets)), scratch_(scratch) {
  ::fcntl(pipe.get(), F_SETFL, ::fcntl(pipe.get(), F_GETFL) | O_NONBLOCK);
  pipe_.assign(pipe.release());
}

void WorkerStream::start(std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  wait();
}

void WorkerStream::wait() {
  pipe_.async_wait(stream_descriptor::wait_read,
                   [this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
                     if (!error && alive.lock()) read_turn();
                   });
}

bool WorkerStream::held_back() const { return targets_.console && targets_.console->holding(); }

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
  paused_ = held_back();
  if (!paused_) wait();
}

WorkerStream::Got WorkerStream::read_once(std::size_t& bytes) {
  const ssize_t got = ::read(pipe_.native_handle(), scratch_.data(), scratch_.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothingYet;
  if (got <= 0) return Got::kEnd;
  bytes += static_cast<std::size_t>(got);
  const std::string_view chunk(scratch_.data(), static_cast<std::size_t>(got));
  if (targets_.file && !write_all(targets_.file.get(), chunk)) targets_.file.reset();
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
  splitter_.finish(*this);
  pipe_.close();
  targets_.file.reset();
  if (targets_.console) targets_.console->write_out();
  if (on_closed_) std::exchange(on_closed_, nullptr)();
}

void WorkerStream::on_line(std::string_view line) {
  if (targets_.keep_tail) tail_.add(line);
  if (targets_.console) targets_.console->line(targets_.prefix, line);
}

void WorkerStream::on_piece(std::string_view piece) {
  if (targets_.keep_tail) tail_.add(piece);
  if (targets_.console) targets_.console->line(targets_.prefix, piece, kCutMark);
}

void WorkerStream::on_progress(std::string_view state) {
  if (targets_.console) targets_.console->progress(targets_.prefix, state);
}

}  // namespace ddprun::agent
