// The part of Output that decides where a worker's streams go, and as whose they are shown.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "agent/output/output.h"
#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {
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

Speaker Output::speaker_of(const OutputWorker& worker, bool is_stderr, std::string prefix) const {
  return make_speaker({.hostname = options_.hostname,
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
    if (stream) stream->speak_as(speaker_of(worker.facts, is_stderr, prefix));
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
    targets.source = targets.console->enter(speaker_of(worker, route.is_stderr, targets.prefix));
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
