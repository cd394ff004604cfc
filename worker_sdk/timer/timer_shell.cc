#include "worker_sdk/timer/timer_shell.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string_view>

#include "common/assert.h"
#include "common/system/own_process.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/timer/run_summary.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

std::optional<std::chrono::nanoseconds> RunDelay::of_this_thread() {
  if (!file_ || thread_ != std::this_thread::get_id()) {
    file_ = UniqueFd(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
    thread_ = std::this_thread::get_id();
  }
  char text[96];  // Three numbers: ns on a CPU, ns ready and not on one, turns.
  const ssize_t size = file_ ? ::pread(file_.get(), text, sizeof(text), 0) : -1;
  if (size <= 0) return std::nullopt;
  const std::string_view line(text, static_cast<std::size_t>(size));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::int64_t ns = 0;
  const auto read = std::from_chars(line.data() + space + 1, line.data() + line.size(), ns);
  if (read.ec != std::errc{}) return std::nullopt;
  return std::chrono::nanoseconds(ns);
}

namespace {

constexpr std::chrono::seconds kLeaveWithin{2};

const char* name_of(ForeignSteps::Phase phase) {
  using enum ForeignSteps::Phase;
  switch (phase) {
    case kData: return "data";
    case kForward: return "forward";
    case kBackward: return "backward";
    case kOptimizer: return "optimizer";
    case kOutside:
    case kExposed: return "";
  }
  return "";
}

}  // namespace

ForeignSteps::~ForeignSteps() {
  shell_.reset();
  if (group_) group_->shutdown(kLeaveWithin);
}

void ForeignSteps::join(const InitOptions& options) {
  DDPRUN_ASSERT(!group_);
  progress_->met();  // In the program's own group.
  group_.emplace(GroupInside::join_unseen(options));
}

void ForeignSteps::use_stream(StreamMarks& marks, Stream stream) {
  marks_ = &marks;
  stream_ = stream;
  if (shell_) shell_->use_stream(marks, stream);
}

void ForeignSteps::enter(Phase phase) {
  using enum Phase;
  notify_agent(phase);
  if (group_ && !shell_) {
    if (phase == kOutside || phase == kExposed) return;  // No step has begun.
    shell_.emplace(*group_, SyncTimerOptions{}, progress_);
    if (marks_) shell_->use_stream(*marks_, stream_);
  }
  if (!shell_) return;
  switch (phase) {
    case kOutside: return shell_->end_local();
    case kData: return shell_->begin_data();
    case kForward: return shell_->begin_forward();
    case kBackward: return shell_->begin_backward();
    case kOptimizer: return shell_->begin_optimizer();
    case kExposed: return shell_->begin_wait();
  }
}

// A rank that waits for others is in the collective of the step: its number shows which ranks are
// missing.
void ForeignSteps::notify_agent(Phase phase) {
  if (phase != Phase::kExposed) return progress_->set_phase(name_of(phase));
  progress_->enter({.what = {.kind = OpKind::kAllReduce}, .number = steps_ + 1});
}

void ForeignSteps::end_step(std::size_t bytes) {
  ++steps_;
  if (shell_) shell_->end_step({BucketTimes{.bytes = bytes}});
}

namespace {

// Options that the caller did not set may come from the environment.
SyncTimerOptions with_environment(SyncTimerOptions options) {
  options.print = options.print || environment_variable("DDPRUN_SYNC_PRINT") == "1";
  if (options.json_file.empty()) options.json_file = environment_variable("DDPRUN_SYNC_JSON");
  if (options.trace_folder.empty()) options.trace_folder = environment_variable("DDPRUN_TRACE");
  return options;
}

// At the end, the wait for ranks that have done as many steps.
constexpr std::chrono::seconds kLastPatience{2};

std::string rank_file(const std::string& folder, const char* before, int rank) {
  return folder + "/" + before + std::to_string(rank) + ".json";
}

}  // namespace

TimerShell::TimerShell(ProcessGroup& group, const SyncTimerOptions& options,
                       std::shared_ptr<Progress> foreign)
    : foreign_(foreign != nullptr),
      identity_(group.identity()),
      host_(group.host_of(group.rank())),
      options_(with_environment(options)),
      start_(StepClock::now()),
      startup_(process_age()),
      end_(start_),
      group_(group),
      progress_(foreign ? std::move(foreign) : GroupInside::progress(group)),
      phases_(start_),
      timer_(identity_.rank, identity_.world_size, options.window) {
  progress_->begin_steps();
  if (DeviceSide* device = GroupInside::device(group)) {
    device_.emplace(*device, DevicePhases::When::kLater);
  }
}

void TimerShell::use_stream(StreamMarks& marks, Stream stream) {
  DDPRUN_ASSERT(foreign_);
  if (!device_) device_.emplace(marks, DevicePhases::When::kDone);
  stream_ = stream;
}

std::optional<Stream> TimerShell::stream() const {
  return foreign_ ? stream_ : GroupInside::stream(group_);
}

void TimerShell::enter(std::chrono::nanoseconds StepTimes::*phase) {
  if (device_) device_->enter(phase, stream());
}

// For a foreign program's buckets, only the time spent waiting for them is known.
void TimerShell::record(StepTimes step) {
  if (foreign_) {
    for (BucketTimes& bucket : step.buckets) {
      bucket = {step.pass_end, step.pass_end, step.exposed, bucket.bytes};
    }
  }
  timer_.record(std::move(step));
  report();
}

std::optional<Contention> TimerShell::counters() {
  const auto delayed = device_ ? std::nullopt : run_delay_.of_this_thread();
  if (!delayed) return std::nullopt;
  return Contention{.delayed = *delayed, .collectives = GroupInside::cpu_time(group_)};
}

void TimerShell::begin_data() {
  phases_.begin_data(StepClock::now());
  enter(&StepTimes::data);
}

void TimerShell::begin_optimizer() {
  phases_.begin_optimizer(StepClock::now());
  enter(&StepTimes::optimizer);
}

void TimerShell::begin_forward() {
  phases_.begin_forward(StepClock::now());
  enter(&StepTimes::forward);
}

void TimerShell::begin_backward() {
  phases_.begin_backward(StepClock::now());
  enter(&StepTimes::backward);
  at_begin_ = counters();
}

void TimerShell::end_local() {
  phases_.end_local(StepClock::now());
  enter(&StepTimes::outside);
}

void TimerShell::begin_wait() {
  phases_.begin_wait(StepClock::now());
  enter(&StepTimes::exposed);
  const auto now = counters();
  contention_ = {};
  if (!now || !at_begin_) return;
  // After a change of thread the difference may be negative: then nothing is known.
  contention_ = {.delayed = now->delayed - at_begin_->delayed,
                 .collectives = now->collectives - at_begin_->collectives};
}

TimerShell::~TimerShell() {
  receive_last();
  if (device_) {
    device_->end();
    silent_ = silent_ || !foreign_;  // Otherwise ranks might exchange different steps.
    for (record_done(); exchange_; record_done()) receive_last();
  }
  report();
  failed();
  const std::string folder = environment_variable("DDPRUN_REPORT_DIR");
  if (folder.empty()) return;
  const RunSummary summary{.startup = startup_,
                           .rest = StepClock::now() - end_,
                           .steps = timer_.total(),
                           .window_steps = timer_.window_steps(),
                           .late = timer_.late_ranks()};
  const std::string path = rank_file(folder, "rank", identity_.rank);
  if (!write_whole(path, to_json(summary, identity_, host_))) complain(path);
}

void TimerShell::end_step(std::vector<BucketTimes> buckets, std::vector<BucketMarks> marks) {
  deliver_finished();
  end_ = StepClock::now();
  progress_->stepped(end_);
  StepTimes step = phases_.end_step(end_);
  step.buckets = std::move(buckets);
  if (device_) {
    device_->end_step(stream(), std::move(step), std::move(marks));
    return record_done();
  }
  charge_contention(step, contention_);
  record(std::move(step));
  begin_exchange();
}

// If many steps are done at once, those of the next window wait until the last exchange has ended.
void TimerShell::record_done() {
  for (;;) {
    if (timer_.window_full()) {
      if (exchange_ && !silent_ && !device_->is_full()) return;
      begin_exchange();
    }
    auto step = device_->next();
    if (!step) return;
    record(std::move(*step));
  }
}

// If an exchange is still in progress a whole window later, the ranks do not keep step. All of them
// notice that, as none of them gets the sum.
void TimerShell::begin_exchange() {
  if (!timer_.window_full()) return;
  silent_ = silent_ || exchange_.has_value();
  if (silent_) return timer_.skip_window();
  sum_ = timer_.contribution();
  exchange_ =
      group_.all_reduce_async(buffer(sum_.data(), sum_.size()), ReduceOp::sum, {.on_host = true});
}

void TimerShell::deliver_finished() {
  if (!exchange_) return;
  if (!foreign_) return deliver();
  if (!exchange_->done()) return;
  try {
    deliver();
  } catch (const Error&) {  // A rank has ended, or its steps are others.
    exchange_.reset();
    silent_ = true;
  }
}

void TimerShell::deliver() {
  exchange_->wait();
  exchange_.reset();
  window_ = timer_.analyse(sum_);
  if (identity_.rank == 0) print_window(*window_);
  if (on_window_) on_window_(*window_);
}

// A window that was complete with the very last step. The program's function is no longer called:
// what it refers to may be gone.
void TimerShell::receive_last() {
  on_window_ = nullptr;
  if (!exchange_) return;
  try {
    if (!foreign_ || exchange_->wait_for(kLastPatience)) return deliver();
    group_.abort();
  } catch (const std::exception&) {  // The steps of the window stay unknown.
  }
  exchange_.reset();
  silent_ = true;
}

void TimerShell::print_window(const SyncWindow& window) {
  if (options_.print) std::fprintf(stderr, "ddprun: sync: %s\n", to_string(window).c_str());
  if (options_.json_file.empty()) return;
  std::ofstream file(options_.json_file, std::ios::app);
  file << ddprun::to_json(window) << '\n' << std::flush;
  if (!file) complain(options_.json_file);
}

void TimerShell::report() {
  const WorkerCounts counted = timer_.counted();
  progress_->count(counted.since(reported_));
  reported_ = counted;
}

void TimerShell::complain(const std::string& path) {
  std::fprintf(stderr, "ddprun: warning: rank %d cannot write %s: %s\n", identity_.rank,
               path.c_str(), std::strerror(errno));
}

std::string TimerShell::trace() const {
  timespec now{};  // The wall clock only labels the trace.
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto wall = std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  const auto steady = StepClock::now().time_since_epoch();
  return chrome_trace({.rank = identity_.rank, .host = host_, .wall_clock = wall - steady},
                      timer_.recent());
}

void TimerShell::failed() {
  if (options_.trace_folder.empty() || timer_.recent().empty()) return;
  const std::string path = rank_file(options_.trace_folder, "trace.rank", identity_.rank);
  if (!write_whole(path, trace())) complain(path);
}

}  // namespace ddprun::worker_sdk
