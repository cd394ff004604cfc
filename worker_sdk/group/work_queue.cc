#include "worker_sdk/group/work_queue.h"

#include <pthread.h>

#include <ctime>

#include "common/assert.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun {

Work::Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work finished_first(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  if (!state_ || state_->forks != worker_sdk::fork_count()) return;
  if (state_->pending) {
    try {
      if (!state_->stream) state_->pending->wait_until(worker_sdk::Clock::time_point::max());
    } catch (const Error&) {
    }
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->finished.wait(lock, [&] { return state_->done.load(); });
}

WorkState& Work::inside() const {
  if (state_ && state_->forks != worker_sdk::fork_count()) {
    throw Error(ErrorKind::bad_argument, {.operation = "Work"},
                "this process was forked off the one that issued the operation");
  }
  if (state_) return *state_;
  throw Error(ErrorKind::bad_argument, {.operation = "Work"},
              "this Work is empty: it was moved from, or stands for no operation");
}

// Has no deadline of its own: the operation has one.
void Work::wait() {
  const worker_sdk::InGroupCall here;
  const WorkState& state = inside();
  if (state.pending && state.stream) return state.pending->follow(*state.stream);
  synchronize();
}

void Work::synchronize() {
  const worker_sdk::InGroupCall here;
  WorkState& state = inside();
  if (state.pending) {
    state.pending->wait_until(worker_sdk::Clock::time_point::max());
    return;
  }
  {
    std::unique_lock lock(state.mutex);
    state.finished.wait(lock, [&] { return state.done.load(); });
  }
  if (state.error) std::rethrow_exception(state.error);
}

bool Work::wait_for(std::chrono::milliseconds limit) {
  const worker_sdk::InGroupCall here;
  WorkState& state = inside();
  const auto end = worker_sdk::deadline_after(limit);
  if (state.pending) return state.pending->wait_until(end);
  {
    std::unique_lock lock(state.mutex);
    if (!state.finished.wait_until(lock, end, [&] { return state.done.load(); })) return false;
  }
  wait();
  return true;
}

std::optional<Error> Work::error() const {
  const WorkState& state = inside();
  if (state.pending) return state.pending->error();
  if (!state.done.load() || !state.error) return std::nullopt;
  try {
    std::rethrow_exception(state.error);
  } catch (const Error& error) {
    return error;
  }
}

bool Work::done() const {
  const WorkState& state = inside();
  return state.pending ? state.pending->done() : state.done.load();
}

std::chrono::nanoseconds Work::duration() const {
  const WorkState& state = inside();
  if (state.pending) return state.pending->duration();
  return state.done.load() ? state.duration : std::chrono::nanoseconds(0);
}

std::chrono::steady_clock::time_point Work::started() const {
  const WorkState& state = inside();
  if (state.pending) return state.pending->started();
  return state.done.load() ? state.start : std::chrono::steady_clock::time_point();
}

namespace worker_sdk {

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void WorkQueue::start(const Error::Where& where) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = start_thread("ddprun-queue", where, [this] { run(); });
}

std::shared_ptr<WorkState> WorkQueue::post(std::function<void()> operation,
                                           std::shared_ptr<Completions> completions) {
  auto state = std::make_shared<WorkState>();
  state->completions = std::move(completions);
  const std::lock_guard lock(mutex_);
  DDPRUN_ASSERT(!stopping_ && thread_.joinable());
  items_.push_back({std::move(operation), state});
  pending_.fetch_add(1, std::memory_order_relaxed);
  changed_.notify_all();
  return state;
}

std::chrono::nanoseconds WorkQueue::cpu_time() {
  const std::lock_guard lock(mutex_);
  clockid_t clock{};
  timespec used{};
  if (!thread_.joinable() || ::pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 ||
      ::clock_gettime(clock, &used) != 0) {
    return {};
  }
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

bool WorkQueue::wait_idle(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline_after(limit), [&] { return idle(); });
}

void WorkQueue::carry_out(const std::function<void()>& operation, WorkState& state) {
  const auto start = std::chrono::steady_clock::now();
  std::exception_ptr error;
  try {
    operation();
  } catch (const Error&) {
    error = std::current_exception();
  } catch (const std::exception& failure) {
    error = std::make_exception_ptr(as_error(failure, {}));
  }
  const std::lock_guard lock(state.mutex);
  state.error = error;
  state.start = start;
  state.duration = std::chrono::steady_clock::now() - start;
  state.done.store(true);
  state.finished.notify_all();
  if (state.completions) state.completions->signal();
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    // Idle before done: a caller that has waited for the last operation may use the backend without
    // this thread.
    carry_out(
        [&] {
          struct Countdown {
            std::atomic<int>& pending;
            ~Countdown() { pending.fetch_sub(1, std::memory_order_release); }
          } const countdown{pending_};
          item.operation();
        },
        *item.state);
    lock.lock();
    changed_.notify_all();
  }
}

}  // namespace worker_sdk
}  // namespace ddprun
