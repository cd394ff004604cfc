#include "agent/output/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/assert.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/signals.h"
#include "common/system/user_file.h"

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
  const auto report_error = [&loop = loop_](const std::string& path, int error) {
    boost::asio::post(loop, [path, error] {
      const boost::system::error_code code(error, boost::system::system_category());
      log::warning("writing " + path + ": " + code.message() +
                   "; the run continues, these lines are lost");
    });
  };
  const auto report_room = [&loop = loop_, this, alive = std::weak_ptr(alive_)] {
    boost::asio::post(loop, [this, alive] {
      if (alive.lock()) room();
    });
  };
  const std::size_t low = options_.queue_bytes / 2;
  thread_ = own_thread("log-writer", [shared = shared_, report_error, report_room, low] {
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
      if (complains) report_error(stream.file_.path(), stream.file_.error());
      shared->bytes -= chunk.bytes.size();
      if (shared->room_wanted && shared->bytes <= low) {
        shared->room_wanted = false;
        report_room();
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

Result<LogFile> LogFile::open(std::string path, LogRotation rotation) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return errno_failure("opening " + path);
  return LogFile(std::move(path), rotation, std::move(file),
                 static_cast<std::uint64_t>(status.st_size));
}

void LogFile::write(std::uint64_t lost_before, std::string_view bytes) {
  if (lost_before > 0) {
    skipping_ = true;
    gap_ += lost_before;
    lost_ += lost_before;
  }
  if (!close_gap(bytes)) return;
  if (rotation_.bytes == 0) return put(bytes);
  while (!bytes.empty()) {
    const std::uint64_t room = size_ < rotation_.bytes ? rotation_.bytes - size_ : 0;
    std::size_t part = bytes.size();
    if (part > room) {
      // Up to the last line that fits; a line that is under way goes on to its end.
      const std::size_t fits = bytes.substr(0, room).rfind('\n');
      if (fits != std::string_view::npos) {
        part = fits + 1;
      } else if (in_line_ || size_ == 0) {
        part = std::min(bytes.find('\n'), part - 1) + 1;
      } else {
        rotate();
        continue;
      }
    }
    put(bytes.substr(0, part));
    bytes.remove_prefix(part);
  }
}

// False if there is still a gap and nothing can be written.
bool LogFile::close_gap(std::string_view& bytes) {
  if (skipping_) {
    const std::size_t newline = bytes.find('\n');
    skipping_ = newline == std::string_view::npos;
    const std::size_t rest = skipping_ ? bytes.size() : newline + 1;
    gap_ += rest;
    lost_ += rest;
    bytes.remove_prefix(rest);
    if (skipping_) return false;
  }
  if (gap_ == 0) return true;
  const std::string note = std::string(in_line_ ? "\n" : "") + "[ddprun: " + std::to_string(gap_) +
                           " bytes were lost here]\n";
  std::string_view left = note;
  if (!put_all(left)) {
    gap_ += bytes.size();
    lost_ += bytes.size();
    skipping_ = !bytes.empty() && !bytes.ends_with('\n');
    return false;
  }
  gap_ = 0;
  return true;
}

void LogFile::put(std::string_view bytes) {
  if (put_all(bytes)) return;
  gap_ += bytes.size();
  lost_ += bytes.size();
  skipping_ = !bytes.ends_with('\n');
}

// Takes away what could be written.
bool LogFile::put_all(std::string_view& bytes) {
  while (!bytes.empty()) {
    // cppcheck-suppress invalidLifetime  // It takes a view for what it looks at.
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error_ = written < 0 ? errno : EIO;
      return false;
    }
    in_line_ = bytes[static_cast<std::size_t>(written) - 1] != '\n';
    size_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Where renaming or opening fails the file goes on growing.
void LogFile::rotate() {
  const auto numbered = [&](int n) { return n == 0 ? path_ : path_ + "." + std::to_string(n); };
  for (int n = rotation_.keep; n > 0; --n) {
    std::rename(numbered(n - 1).c_str(), numbered(n).c_str());
  }
  if (rotation_.keep == 0) ::unlink(path_.c_str());
  UniqueFd fresh(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (fresh) file_ = std::move(fresh);
  size_ = 0;
}

namespace {

namespace fs = std::filesystem;

// A run id is the user's: it must not lead out of the folder.
std::string file_name_of(std::string run_id) {
  std::replace(run_id.begin(), run_id.end(), '/', '_');
  return run_id.empty() || run_id.front() == '.' ? "run" + run_id : run_id;
}

Result<std::string> make_unique_folder(const std::string& stem) {
  std::string path = stem + "_XXXXXX";
  if (!::mkdtemp(path.data())) return errno_failure("making the log folder " + path);
  return path;
}

Result<std::string> make_temporary_folder() {
  const std::string temporary = environment_variable("TMPDIR");
  const std::string preferred = temporary.empty() ? "/tmp" : temporary;
  Result<std::string> made = make_unique_folder(preferred + "/ddprun");
  return made || preferred == "/tmp" ? made : make_unique_folder("/tmp/ddprun");
}

}  // namespace

LogFolder LogFolder::for_error_files(std::string folder, std::string stem) {
  DDPRUN_ASSERT(!folder.empty() && !stem.empty());
  LogFolder logs;
  logs.folder_ = std::move(folder);
  logs.stem_ = std::move(stem);
  return logs;
}

Result<LogFolder> LogFolder::create(const std::string& log_dir, const std::string& run_id) {
  LogFolder logs;
  if (log_dir == "/dev/null") return logs;
  std::string base = log_dir;
  if (base.empty()) {
    Result<std::string> made = make_temporary_folder();
    if (made.has_error()) return made.error();
    base = std::move(*made);
  }
  std::error_code error;
  base = fs::absolute(base, error).string();
  fs::create_directories(base, error);
  if (error) return Failure{error, "making the log folder " + base};
  Result<std::string> folder = make_unique_folder(base + "/" + file_name_of(run_id));
  if (folder.has_error()) return folder.error();
  logs.folder_ = std::move(*folder);
  return logs;
}

std::string LogFolder::worker_folder(int restart_count, int local_rank) const {
  return attempt_folder(restart_count) + "/" + std::to_string(local_rank);
}

std::string LogFolder::attempt_folder(int restart_count) const {
  return folder_ + "/attempt_" + std::to_string(restart_count);
}

Result<std::string> LogFolder::make_worker_folder(int restart_count, int local_rank) const {
  ::unlink(error_file(restart_count, local_rank).c_str());
  if (!stem_.empty()) return folder_;
  std::string path = worker_folder(restart_count, local_rank);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Failure{error, "making the log folder " + path};
  return path;
}

std::string LogFolder::error_file(int restart_count, int local_rank) const {
  if (!enabled()) return "";
  if (stem_.empty()) return worker_folder(restart_count, local_rank) + "/error.json";
  return folder_ + "/" + stem_ + std::to_string(restart_count) + "_" + std::to_string(local_rank) +
         ".json";
}

std::string LogFolder::dump_file(int restart_count, int local_rank) const {
  if (!enabled() || !stem_.empty()) return "";
  return worker_folder(restart_count, local_rank) + "/flight_recorder.json";
}

std::string read_file_end(const std::string& path, std::size_t bytes_max) {
  return read_regular_end(path, bytes_max).value_or("");
}

}  // namespace ddprun::agent
