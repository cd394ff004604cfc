#include "worker_sdk/nccl/nccl_comm.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <future>
#include <utility>

#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/nccl/nccl_watch.h"

namespace ddprun::worker_sdk {

bool NcclSiblings::add(NcclWatch& watch) {
  const std::lock_guard lock(mutex_);
  watches_.push_back(&watch);
  return first_.has_value();
}

void NcclSiblings::remove(NcclWatch& watch) {
  const std::lock_guard lock(mutex_);
  std::erase(watches_, &watch);
}

void NcclSiblings::fail(const NcclWatch& watch, First first) {
  const std::lock_guard lock(mutex_);
  if (first_) return;
  first_ = std::move(first);
  for (NcclWatch* other : watches_) {
    if (other != &watch) other->doom();
  }
}

std::optional<LossNotice> NcclSiblings::loss_notice() const {
  auto word = progress_->loss_notice();
  if (word && gone_.contains(word->rank)) return std::nullopt;
  return word;
}

std::optional<NcclSiblings::First> NcclSiblings::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGatePatience{500};  // For a call of NCCL that should not block, but may.
constexpr milliseconds kCommAbortPatience{10000};  // Used if the caller sets no limit.
constexpr milliseconds kGraphPatience{250};    // For streams to become free while graphs hold NCCL.
constexpr milliseconds kAlonePatience{10000};  // For another thread's call to end.
constexpr std::chrono::microseconds kQuickPolls{500}, kCommPollAgain{50};

NcclConfig config_of(const NcclCommOptions& options) {
  NcclConfig config;
  config.blocking = 0;
  config.comm_name = options.name.empty() ? nullptr : options.name.c_str();
  if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
  return config;
}

void pause() {
  const timespec length{0, std::chrono::nanoseconds(kCommPollAgain).count()};
  ::nanosleep(&length, nullptr);
}

// Runs a call that may never return in a thread of its own. If no thread can be started, runs it in
// this one: the communicator must end.
template <class Function>
std::shared_ptr<NcclCallApart> apart(std::shared_ptr<const GpuRuntime> gpu, int device,
                                     Function function) {
  auto call = std::make_shared<NcclCallApart>();
  auto run = [gpu = std::move(gpu), device, function, call]() mutable {
    gpu->cuda.set_device(device);
    function(gpu->nccl);
    gpu.reset();
    const std::lock_guard lock(call->mutex);
    call->returned = true;
    call->changed.notify_all();
  };
  try {
    start_thread("ddprun-call", {}, run).detach();
  } catch (const Error&) {
    run();
  }
  return call;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const GpuRuntime> gpu, NcclCommOptions options)
    : gpu_(std::move(gpu)), options_(std::move(options)) {
  NcclConfig config = config_of(options_);
  const GpuDeviceGuard current(*gpu_, options_.device);  // NCCL uses the current device.
  std::vector<NcclUniqueId> ids = options_.ids;
  const int status =
      ids.size() > 1 ? gpu_->nccl.init_scalable(&comm_, options_.size, options_.rank,
                                                static_cast<int>(ids.size()), ids.data(), &config)
                     : gpu_->nccl.init(&comm_, options_.size, ids.front(), options_.rank, &config);
  if (status == kNcclSuccess || status == kNcclInProgress) return;
  error_ = status;
  text_ = gpu_->nccl.last_error(comm_);
}

NcclCommunicator::~NcclCommunicator() { abort(kCommAbortPatience); }

// Call with the gate locked. Keeps the first error.
void NcclCommunicator::keep_error(int status) {
  if (status == kNcclSuccess || status == kNcclInProgress || error_ != kNcclSuccess) return;
  error_ = status;
  text_ = gpu_->nccl.last_error(current());
}

int NcclCommunicator::status() {
  const std::unique_lock lock(gate_, std::try_to_lock);
  if (!lock) return kNcclInProgress;  // Another thread is in a call.
  const NcclComm comm = current();
  if (error_ != kNcclSuccess || !comm) return error_;
  int status = kNcclSuccess;
  const int result = gpu_->nccl.async_error(comm, &status);
  if (result != kNcclSuccess) status = result;
  keep_error(status);
  return status;
}

int NcclCommunicator::settle(const std::function<bool()>& give_up) {
  // A thread of NCCL puts each operation into the stream, which takes some 100 us.
  for (const auto quick = Clock::now() + kQuickPolls;;) {
    const int now = status();
    if (now != kNcclInProgress || give_up()) return now;
    if (Clock::now() < quick) {
      std::this_thread::yield();
    } else {
      pause();
    }
  }
}

int NcclCommunicator::call(const Use& what) {
  const std::lock_guard lock(gate_);
  const NcclComm comm = current();
  if (!comm || revoked_) return kNcclInvalidUsage;
  const int status = what(gpu_->nccl, comm);
  keep_error(status);
  return status;
}

int NcclCommunicator::call_alone(const Use& what) {
  int status = kNcclInProgress;
  retry_until(Clock::now() + kAlonePatience, [&] {
    const std::lock_guard lock(gate_);
    const NcclComm comm = current();
    if (!comm || revoked_) return status = kNcclInvalidUsage, true;
    int now = kNcclSuccess;
    gpu_->nccl.async_error(comm, &now);
    if (now == kNcclInProgress) return false;
    status = what(gpu_->nccl, comm);
    keep_error(status);
    return true;
  });
  return status;
}

std::string NcclCommunicator::explain(int status) {
  std::string text = gpu_->nccl.error_string(status);  // Needs no communicator, so no gate.
  const auto lock = lock_soon();
  if (lock && !text_.empty() && text_ != text) text += ": " + text_;
  return text;
}

// For a thread that may start late, when the call has been given up and `comm` freed.
int NcclCommunicator::call_unless_taken(NcclComm comm, const Use& what) {
  const std::lock_guard lock(gate_);
  return current() == comm ? what(gpu_->nccl, comm) : kNcclInProgress;
}

// Polls instead of using a timed mutex: ThreadSanitizer does not know its timed lock.
std::unique_lock<std::mutex> NcclCommunicator::lock_soon() {
  std::unique_lock lock(gate_, std::defer_lock);
  retry_until(Clock::now() + kGatePatience, [&] { return lock.try_lock(); });
  return lock;
}

// The caller has to end the communicator that it takes.
NcclComm NcclCommunicator::take() {
  const auto lock = lock_soon();
  return std::atomic_ref(comm_).exchange(nullptr);
}

void NcclCommunicator::begin_abort() {
  const std::lock_guard lock(ending_gate_);
  const NcclComm comm = take();
  if (!comm) return;
  ended_ = apart(gpu_, options_.device, [comm](const NcclApi& nccl) { nccl.abort(comm); });
}

bool NcclCommunicator::ended_within(milliseconds limit) {
  const std::lock_guard lock(ending_gate_);
  return !ended_ || ended_->returns_before(Clock::now() + limit);
}

void NcclCommunicator::abort(milliseconds limit) {
  begin_abort();
  if (ended_within(limit)) return;
  std::fprintf(stderr,
               "ddprun: rank %d: ncclCommAbort has not returned within %lld ms; ending this "
               "process, because nothing else frees the device\n",
               options_.rank, static_cast<long long>(limit.count()));
  std::fflush(stderr);
  ::_exit(kAbortHangs);
}

bool NcclCommunicator::is_revoked() {
  const auto lock = lock_soon();
  return lock && current() && revoked_;
}

// Null: it is to be aborted. NCCL must not revoke what is in progress: it would keep a pointer to
// the job that it then frees (ncclCommEnsureReady in src/init.cc of 2.28.9).
NcclComm NcclCommunicator::take_for_revocation() {
  const bool able = gpu_->features.revoke && gpu_->nccl.revoke && gpu_->nccl.shrink;
  if (!options_.may_shrink || !able) return nullptr;
  const auto lock = lock_soon();
  const NcclComm comm = current();
  if (!lock || !comm) return nullptr;
  int now = kNcclSuccess;
  gpu_->nccl.async_error(comm, &now);
  if (now == kNcclInProgress) return nullptr;
  revoked_ = true;
  error_ = kNcclSuccess;  // From now on `error_` is about the revocation.
  return comm;
}

void NcclCommunicator::revoke(milliseconds limit, milliseconds abort_limit, bool in_graphs) {
  const Clock::time_point deadline = Clock::now() + limit;
  const NcclComm comm = take_for_revocation();
  if (!comm && in_graphs) {
    begin_abort();
    ended_within(kGraphPatience);
    return;
  }
  if (!comm) return abort(abort_limit);
  std::promise<int> called;
  auto answer = called.get_future();
  std::thread calling;
  try {
    calling = start_thread("ddprun-call", {}, [&] {
      gpu_->cuda.set_device(options_.device);
      called.set_value(call_unless_taken(
          comm, [](const NcclApi& nccl, NcclComm mine) { return nccl.revoke(mine, 0); }));
    });
  } catch (const Error&) {
    return abort(abort_limit);
  }
  bool well = answer.wait_until(deadline) == std::future_status::ready;
  if (well) {
    const int status = answer.get();
    const auto late = [&] { return Clock::now() >= deadline; };
    well = (status == kNcclSuccess || status == kNcclInProgress) && settle(late) == kNcclSuccess;
  }
  if (!well) abort(abort_limit);  // abort() ends the call, too.
  calling.join();
}

// The call itself may block until the device's stream is empty, and the new communicator exists
// only when the old one is no longer in progress.
std::pair<std::unique_ptr<NcclCommunicator>, std::string> NcclCommunicator::shrink(
    std::vector<int> excluded, NcclCommOptions options, const std::function<bool()>& give_up) {
  const NcclComm parent = is_revoked() ? current() : nullptr;
  if (!parent) return {nullptr, "there is nothing to shrink"};
  NcclConfig config = config_of(options);
  NcclComm child = nullptr;
  std::atomic<bool> returned{false};
  int status = kNcclInProgress;
  std::thread calling;
  try {
    calling = start_thread("ddprun-call", {}, [&] {
      gpu_->cuda.set_device(options_.device);
      status = call_unless_taken(parent, [&](const NcclApi& nccl, NcclComm mine) {
        return nccl.shrink(mine, excluded.data(), static_cast<int>(excluded.size()), &child,
                           &config, kNcclShrinkAbort);
      });
      returned.store(true);
    });
  } catch (const Error& error) {
    return {nullptr, error.text()};
  }
  while (!returned.load() && !give_up()) {
    pause();
  }
  if (!returned.load()) abort(kCommAbortPatience);
  calling.join();
  if (status == kNcclSuccess || status == kNcclInProgress) status = settle(give_up);
  std::string text;  // An aborted communicator has no error of its own.
  if (status == kNcclInProgress || !child) text = "ncclCommShrink does not end";
  if (status != kNcclSuccess && status != kNcclInProgress) text = "NCCL says: " + explain(status);
  if (!text.empty()) abort(kCommAbortPatience);  // Then `child` is no longer written.
  std::unique_ptr<NcclCommunicator> made;
  if (child) made.reset(new NcclCommunicator(gpu_, std::move(options), child));
  return {std::move(made), std::move(text)};
}

void NcclCommunicator::finish(Clock::time_point deadline) {
  const auto late = [&] { return Clock::now() >= deadline; };
  const int result = call([](const NcclApi& nccl, NcclComm comm) { return nccl.finalize(comm); });
  const bool begun = result == kNcclSuccess || result == kNcclInProgress;
  if (!begun || settle(late) != kNcclSuccess) return abort(kCommAbortPatience);
  const NcclComm comm = take();
  if (!comm) return;
  const auto ended =
      apart(gpu_, options_.device, [comm](const NcclApi& nccl) { nccl.destroy(comm); });
  if (ended->returns_before(deadline)) return;
  std::fprintf(stderr,
               "ddprun: warning: rank %d: ncclCommDestroy waits for a rank of this host that has "
               "not finished; continuing without it\n",
               options_.rank);
}

}  // namespace ddprun::worker_sdk
