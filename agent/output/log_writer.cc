#include "agent/output/log_writer.h"

#include <boost/asio/post.hpp>
#include <system_error>
#include <utility>

#include "common/system/log.h"
#include "common/system/threads.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMergeBytes = std::size_t{64} << 10;  // Small chunks of a stream become one.

}  // namespace

LogWriter::LogWriter(boost::asio::io_context& loop, LogWriterOptions options)
    : loop_(loop), options_(options), hold_timer_(loop) {}

LogWriter::~LogWriter() {
  if (!thread_.joinable()) return;
  bool busy = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    shared_->queue.clear();
    busy = shared_->busy;
  }
  shared_->wake.notify_one();
  busy ? thread_.detach() : thread_.join();
}

Result<LogWriter::StreamPtr> LogWriter::open(const std::string& path, LogRotation rotation) {
  auto file = LogFile::open(path, rotation);
  if (file.has_error()) return file.error();
  if (!thread_.joinable()) {
    try {
      run_thread();
    } catch (const std::system_error& error) {
      return Failure{error.code(), "starting a thread that writes " + path};
    }
  }
  return std::make_shared<Stream>(std::move(*file));
}

// The thread touches nothing of ours but what it has here: the disk may keep it for ever.
void LogWriter::run_thread() {
  const auto say_error = [&loop = loop_](const std::string& path, int error) {
    boost::asio::post(loop, [path, error] {
      const boost::system::error_code code(error, boost::system::system_category());
      log::warning("writing " + path + ": " + code.message() +
                   "; the run continues, these lines are lost");
    });
  };
  const auto say_room = [&loop = loop_, this, alive = std::weak_ptr(alive_)] {
    boost::asio::post(loop, [this, alive] {
      if (alive.lock()) room();
    });
  };
  const std::size_t low = options_.queue_bytes / 2;
  thread_ = own_thread("log-writer", [shared = shared_, say_error, say_room, low] {
    std::unique_lock lock(shared->mutex);
    while (true) {
      shared->wake.wait(lock, [&] { return shared->stop || !shared->queue.empty(); });
      if (shared->stop) return;
      Chunk chunk = std::move(shared->queue.front());
      shared->queue.pop_front();
      shared->busy = true;
      lock.unlock();
      Stream& stream = *chunk.stream;
      stream.file_.write(chunk.lost_before, chunk.bytes);
      const bool complains = stream.file_.error() != 0 && !stream.complained_;
      stream.complained_ = stream.complained_ || complains;
      lock.lock();
      shared->busy = false;
      if (shared->stop) return;
      if (complains) say_error(stream.file_.path(), stream.file_.error());
      shared->bytes -= chunk.bytes.size();
      if (shared->room_wanted && shared->bytes <= low) {
        shared->room_wanted = false;
        say_room();
      }
      if (shared->queue.empty()) shared->idle.notify_all();
    }
  });
}

void LogWriter::write(const StreamPtr& stream, std::string_view bytes) {
  if (dropping_) {
    stream->dropped_ += bytes.size();
    dropped_ += bytes.size();
    return;
  }
  enqueue({stream, std::exchange(stream->dropped_, 0), std::string(bytes)});
}

void LogWriter::enqueue(Chunk chunk) {
  bool full = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->bytes += chunk.bytes.size();
    full = shared_->bytes >= options_.queue_bytes;
    shared_->room_wanted = shared_->room_wanted || full;
    Chunk* last = shared_->queue.empty() ? nullptr : &shared_->queue.back();
    const bool merge = last && last->stream == chunk.stream && chunk.lost_before == 0 &&
                       last->bytes.size() + chunk.bytes.size() <= kMergeBytes;
    if (merge) {
      last->bytes += chunk.bytes;
    } else {
      shared_->queue.push_back(std::move(chunk));
    }
  }
  shared_->wake.notify_one();
  if (full && !holding_) start_hold();
}

void LogWriter::close(StreamPtr& stream) {
  if (stream && stream->dropped_ > 0) enqueue({stream, std::exchange(stream->dropped_, 0), "\n"});
  stream.reset();
}

void LogWriter::start_hold() {
  holding_ = true;
  hold_timer_.expires_after(options_.hold_max);
  hold_timer_.async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
    if (error || !alive.lock() || !holding_) return;
    holding_ = false;
    dropping_ = true;
    if (on_hold_over) on_hold_over();
  });
}

void LogWriter::room() {
  dropping_ = false;
  hold_timer_.cancel();
  if (std::exchange(holding_, false) && on_hold_over) on_hold_over();
}

std::size_t LogWriter::finish(Milliseconds limit) {
  std::unique_lock lock(shared_->mutex);
  shared_->idle.wait_for(lock, limit, [&] { return shared_->queue.empty() && !shared_->busy; });
  return shared_->bytes;
}

}  // namespace ddprun::agent
