#include "agent/output/output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kReadBytes = std::size_t{256} << 10;

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

ConsoleOptions console_options(const OutputOptions& options, const char* name) {
  return {.name = name, .queue_bytes = options.queue_bytes, .hold_max = options.hold_max};
}

}  // namespace

Output::Output(boost::asio::io_context& loop, OutputOptions options)
    : loop_(loop),
      options_(std::move(options)),
      stdout_(loop, options_.stdout_fd, console_options(options_, "standard output")),
      stdout_lines_(loop, stdout_, options_.lines),
      writer_(loop, options_.writer),
      scratch_(kReadBytes, '\0') {
  ::signal(SIGPIPE, SIG_IGN);
  if (!same_file(options_.stdout_fd, options_.stderr_fd)) {
    stderr_ = std::make_unique<Console>(loop, options_.stderr_fd,
                                        console_options(options_, "standard error"));
    stderr_->on_hold_over = [this] { resume_readers(); };
    stderr_lines_ = std::make_unique<ConsoleLines>(loop, *stderr_, options_.lines);
  }
  writer_.on_hold_over = [this] { resume_readers(); };
  stdout_.on_hold_over = [this] { resume_readers(); };
}

void Output::Worker::close_early() {
  if (stdout_stream) stdout_stream->close_early();
  if (stderr_stream) stderr_stream->close_early();
}

void Output::Worker::close_now() {
  if (stdout_stream) stdout_stream->close_now();
  if (stderr_stream) stderr_stream->close_now();
}

Result<WorkerEnds> Output::open(const OutputWorker& worker) {
  const Route out = route(worker, false), err = route(worker, true);
  std::string folder;
  if (options_.logs.enabled()) {
    Result<std::string> made =
        options_.logs.make_worker_folder(worker.restart_count, worker.local_rank);
    if (made.has_error()) goes_without_file(made.error());
    if (made) folder = std::move(*made);
  }
  close_previous(worker.local_rank);
  auto state = std::make_shared<Worker>(loop_, worker);
  Result<UniqueFd> stdout_end = open_stream(worker, out, folder, state->stdout_stream);
  if (stdout_end.has_error()) return stdout_end.error();
  Result<UniqueFd> stderr_end = open_stream(worker, err, folder, state->stderr_stream);
  if (stderr_end.has_error()) return stderr_end.error();

  workers_[worker.local_rank] = std::move(state);
  Worker& kept = *workers_[worker.local_rank];
  for (WorkerStream* stream : {kept.stdout_stream.get(), kept.stderr_stream.get()}) {
    if (stream) stream->start([this, rank = worker.local_rank] { stream_closed(rank); });
  }
  return WorkerEnds{std::move(*stdout_end), std::move(*stderr_end)};
}

// A process that still writes there belongs to a round that is over.
void Output::close_previous(int local_rank) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return;
  found->second->reported = true;
  const std::shared_ptr<Worker> previous = found->second;
  previous->close_now();
}

void Output::exited(int local_rank) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end() || found->second->exited) return;
  Worker& worker = *found->second;
  worker.exited = true;
  worker.patience.expires_after(options_.eof_wait);
  worker.patience.async_wait(
      [held = std::weak_ptr(found->second)](boost::system::error_code error) {
        const std::shared_ptr<Worker> late = held.lock();
        if (!error && late) late->close_early();
      });
  boost::asio::post(loop_, [this, local_rank, alive = std::weak_ptr(alive_)] {
    if (alive.lock()) stream_closed(local_rank);
  });
}

void Output::stream_closed(int local_rank) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end() || found->second->reported || !drained(local_rank)) return;
  found->second->reported = true;
  found->second->patience.cancel();
  if (on_drained) on_drained(local_rank);
}

// Closes its pipes even if another process holds them: what comes later does not belong to its last
// words.
void Output::drain(int local_rank) {
  const auto found = workers_.find(local_rank);
  const std::shared_ptr<Worker> held = found == workers_.end() ? nullptr : found->second;
  if (held && held->exited) held->close_now();
}

bool Output::drained(int local_rank) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return true;
  const Worker& worker = *found->second;
  const auto over = [](const std::unique_ptr<WorkerStream>& stream) {
    return !stream || stream->closed();
  };
  return worker.exited && over(worker.stdout_stream) && over(worker.stderr_stream);
}

std::vector<std::string> Output::last_lines(int local_rank) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return {};
  const Worker& worker = *found->second;
  std::vector<std::string> lines;
  if (worker.stderr_stream) lines = worker.stderr_stream->tail().lines();
  if (lines.empty() && worker.stdout_stream) lines = worker.stdout_stream->tail().lines();
  return lines;
}

const TailRing* Output::tail(int local_rank, bool is_stderr) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return nullptr;
  const Worker& worker = *found->second;
  const auto& stream = is_stderr ? worker.stderr_stream : worker.stdout_stream;
  return stream ? &stream->tail() : nullptr;
}

std::optional<std::uint64_t> Output::shown_since(int local_rank) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return std::nullopt;
  const Worker& worker = *found->second;
  const bool on_stderr = worker.stderr_stream && !worker.stderr_stream->tail().lines().empty();
  if (!on_stderr && stderr_) return std::nullopt;  // Standard output went elsewhere.
  const auto& stream = on_stderr ? worker.stderr_stream : worker.stdout_stream;
  if (!stream || !stream->last_shown()) return std::nullopt;
  return shown_ - *stream->last_shown();
}

// Later, for what happens then may start and end workers.
void Output::resume_readers() {
  boost::asio::post(loop_, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.lock()) return;
    const auto workers = workers_;
    for (const auto& [local_rank, worker] : workers) {
      if (worker->stdout_stream) worker->stdout_stream->resume();
      if (worker->stderr_stream) worker->stderr_stream->resume();
    }
  });
}

std::size_t Output::flush(std::chrono::milliseconds stall_max, std::chrono::milliseconds limit) {
  // A worker's end may be known before its last output was read; first make room for that.
  stdout_.flush(stall_max, limit);
  if (stderr_) stderr_->flush(stall_max, limit);
  const auto workers = workers_;
  for (const auto& [local_rank, worker] : workers) {
    if (worker->exited) worker->close_now();
  }
  stdout_lines_.close();
  if (stderr_lines_) stderr_lines_->close();
  const std::size_t unwritten = writer_.finish(limit);
  if (unwritten > 0) {
    log::warning("the disk of the log files is too slow: " + std::to_string(unwritten) +
                 " bytes are not written");
  }
  return stdout_.flush(stall_max, limit) + (stderr_ ? stderr_->flush(stall_max, limit) : 0);
}

std::uint64_t Output::dropped() const {
  return stdout_.dropped() + (stderr_ ? stderr_->dropped() : 0);
}

// The part of Output that decides where a worker's streams go, and with which prefix they are
// shown.

namespace {

constexpr int kPipeBytes = 256 << 10;  // Wished for; the kernel's limit for a user may be lower.

}  // namespace

Output::Route Output::route(const OutputWorker& worker, bool is_stderr) const {
  const auto in = [&](const StreamMap& map) {
    return map.has(worker.local_rank, is_stderr ? StreamMap::kStderr : StreamMap::kStdout);
  };
  const std::vector<int>& filter = options_.local_ranks_filter;
  const bool shown =
      filter.empty() || std::find(filter.begin(), filter.end(), worker.local_rank) != filter.end();
  const bool file = options_.logs.enabled() && (in(options_.redirects) || in(options_.tee));
  const bool redirected = in(options_.redirects) && !in(options_.tee);
  return {.console = shown && !redirected,
          .shown = shown,
          .file = file,
          .teed = file && in(options_.tee),
          .is_stderr = is_stderr};
}

std::string Output::prefix_of(const OutputWorker& worker) const {
  return expand_line_prefix(options_.prefix_template, {.role_name = options_.role,
                                                       .rank = worker.rank,
                                                       .local_rank = worker.local_rank,
                                                       .hostname = options_.hostname});
}

LineOrigin Output::origin_of(const OutputWorker& worker, bool is_stderr, std::string prefix) const {
  return make_line_origin({.hostname = options_.hostname,
                           .role = options_.role,
                           .rank = worker.rank,
                           .local_rank = worker.local_rank,
                           .restart_count = worker.restart_count,
                           .is_stderr = is_stderr},
                          std::move(prefix));
}

// Its files keep their names, which are of the process.
void Output::seated(int local_rank, int rank) {
  DDPRUN_ASSERT(rank >= 0);
  const auto found = workers_.find(local_rank);
  if (found == workers_.end() || found->second->facts.rank == rank) return;
  Worker& worker = *found->second;
  worker.facts.rank = rank;
  const std::string prefix = prefix_of(worker.facts);
  for (const bool is_stderr : {false, true}) {
    const auto& stream = is_stderr ? worker.stderr_stream : worker.stdout_stream;
    if (stream) stream->set_origin(origin_of(worker.facts, is_stderr, prefix));
  }
}

// The disk is full, or a limit is reached: no reason for a worker not to run.
void Output::goes_without_file(const Failure& why) {
  if (std::exchange(warned_, true)) return;
  log::warning(to_string(why) + "; lines without a log file go to the console");
}

// Returns the worker's end: always a pipe, so that a full or a slow disk is never the worker's
// business, and its last words are at hand wherever they go.
Result<UniqueFd> Output::open_stream(const OutputWorker& worker, Route route,
                                     std::string_view folder,
                                     std::unique_ptr<WorkerStream>& stream) {
  StreamTargets targets;
  targets.writer = &writer_;
  targets.prefix = prefix_of(worker);
  if (const auto opened = open_files(worker, route, folder, targets); !opened) {
    goes_without_file(opened.error());
    route.console = route.shown;
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return errno_failure("making a pipe for local rank " + std::to_string(worker.local_rank));
  }
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  if (route.console) {
    targets.shown = &shown_;
    targets.console = &lines_of(route.is_stderr);
    targets.source = targets.console->enter(origin_of(worker, route.is_stderr, targets.prefix));
  }
  stream = std::make_unique<WorkerStream>(loop_, UniqueFd(ends[0]), std::move(targets), scratch_);
  return UniqueFd(ends[1]);
}

Result<void> Output::open_files(const OutputWorker& worker, Route route, std::string_view folder,
                                StreamTargets& targets) {
  if (!route.file) return {};
  if (folder.empty()) return Failure{Errc::kNotFound, "opening log files without a folder"};
  const char* name = route.is_stderr ? "/stderr.log" : "/stdout.log";
  auto file = writer_.open(std::string(folder) + name, options_.rotation);
  if (!file) return file.error();
  targets.file = std::move(*file);
  targets.needles = route.is_stderr ? options_.stderr_needles : options_.stdout_needles;
  if (!route.teed || targets.needles.empty()) return {};
  auto filtered = filtered_file(worker.restart_count, route.is_stderr);
  if (!filtered) return filtered.error();
  targets.filtered = std::move(*filtered);
  return {};
}

// All workers of an attempt share it.
Result<LogWriter::StreamPtr> Output::filtered_file(int restart_count, bool is_stderr) {
  Filtered& filtered = filtered_[is_stderr ? 1 : 0];
  if (filtered.file && filtered.restart_count == restart_count) return filtered.file;
  const char* name = is_stderr ? "/filtered_stderr.log" : "/filtered_stdout.log";
  auto file = writer_.open(options_.logs.attempt_folder(restart_count) + name, options_.rotation);
  if (!file) return file.error();
  filtered = {restart_count, std::move(*file)};
  return filtered.file;
}

}  // namespace ddprun::agent
