#pragma once
// What a ProcessGroup is made of: numbers the operations, runs them here or on the queue's thread,
// and remembers the first failure. Only process_group*.cc include this.

#include <atomic>
#include <mutex>

#include "worker_sdk/base/fork_count.h"
#include "worker_sdk/group/arguments.h"
#include "worker_sdk/group/work_queue.h"
#include "worker_sdk/join/join.h"
#include "worker_sdk/join/lives.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun {

struct ProcessGroup::Impl {
  // Of the threads that call this group, one at a time; others, and forked children, are refused.
  class Caller {
   public:
    Caller(Impl& group, const worker_sdk::Signature& what) : busy_(group.busy) {
      group.require_joined(what);
      if (busy_.exchange(true, std::memory_order_acquire)) group.refuse_second_thread(what);
    }
    ~Caller() { busy_.store(false, std::memory_order_release); }
    Caller(const Caller&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  Impl(worker_sdk::Plan how, worker_sdk::Joined joined, const InitOptions& options,
       std::shared_ptr<worker_sdk::Progress> reports,
       std::shared_ptr<worker_sdk::NcclSiblings> others)
      : plan(std::move(how)),
        progress(std::move(reports)),
        siblings(std::move(others)),
        life(plan.job_ranks.empty() ? worker_sdk::begin_life(plan) : nullptr),
        identity(joined.identity),
        roster(std::move(joined.roster)),
        arguments(roster),
        store_host(std::move(joined.store_host)),
        store(std::move(joined.store)),
        backend(std::move(joined.backend)),
        device(backend->device()),
        backend_name(backend->name()),
        init_timeout(options.init_timeout),
        op_timeout(options.op_timeout) {}

  ~Impl() {
    if (!queue.wait_idle(op_timeout)) backend->abort();
  }

  worker_sdk::Call number(const worker_sdk::Signature& what) {
    const bool between_two = worker_sdk::is_message(what.kind);
    return {.what = what, .number = between_two ? ++messages : ++collectives};
  }

  [[noreturn]] void refuse(const std::string& operation, const std::string& text) const {
    throw Error(ErrorKind::bad_argument,
                {.rank = roster->rank, .host = host(), .operation = operation}, text);
  }
  [[noreturn]] void refuse_second_thread(const worker_sdk::Signature& what) const {
    refuse(worker_sdk::to_string(what),
           "another thread is in a call of this group; one thread at a time may call it");
  }
  // What a child shares with the ranks is theirs.
  bool is_forked_child() const { return forks != worker_sdk::fork_count(); }
  void require_joined(const std::string& operation) const {
    if (!is_forked_child()) return;
    refuse(operation,
           "this process was forked off the one that joined, and is no rank; join after the fork");
  }
  void require_joined(const worker_sdk::Signature& what) const {
    if (is_forked_child()) require_joined(worker_sdk::to_string(what));
  }
  const std::string& host() const { return roster->hosts[static_cast<std::size_t>(roster->rank)]; }

  std::chrono::milliseconds timeout_of(const worker_sdk::Signature& what,
                                       const CallOptions& options) const {
    if (options.timeout.count() < 0) {
      refuse(worker_sdk::to_string(what), "the timeout must not be negative");
    }
    return options.timeout.count() == 0 ? op_timeout : options.timeout;
  }

  // Starts the time of the operation, and says for how long this rank is in it.
  worker_sdk::InCollective begin(worker_sdk::Call& call, std::chrono::milliseconds timeout) {
    call.start = worker_sdk::Clock::now();
    call.deadline = worker_sdk::deadline_after(call.start, timeout);
    if (dead.load(std::memory_order_acquire)) refuse_dead(call);
    return {*progress, call, plan.job_ranks.empty()};
  }

  // Here and now: `body` has carried out the operation when it returns.
  template <class Body>
  void perform(worker_sdk::Call call, std::chrono::milliseconds timeout, const Body& body) {
    const worker_sdk::InCollective here = begin(call, timeout);
    try {
      body(call);
      // The peers may have done their part before they, or this thread, could notice the abort.
      if (aborted.load()) refuse_aborted(call);
    } catch (const Error& error) {
      die(error);
      throw;
    } catch (const std::exception& error) {
      die(error.what());
      throw worker_sdk::failure(*roster, call, ErrorKind::system, -1, error.what());
    }
  }

  // After all that is queued, in whichever thread; done when it returns.
  template <class Body>
  void perform_in_turn(const worker_sdk::Call& call, std::chrono::milliseconds timeout,
                       const Body& body) {
    if (queue.idle()) return perform(call, timeout, body);
    Work(queue.post([&] { perform(call, timeout, body); })).wait();
  }

  void run(const worker_sdk::Operation& operation, const CallOptions& options) {
    const Caller here(*this, operation.what);
    const auto timeout = timeout_of(operation.what, options);
    const worker_sdk::Call call = number(operation.what);
    if (is_devices(operation.what, options)) {
      const auto pending = enqueue(call, timeout, operation.arrays, options);
      return await(call, *pending, stream_of(options));
    }
    perform_in_turn(call, timeout, [&](const worker_sdk::Call& begun) {
      backend->carry_out(begun, operation.arrays);
    });
  }

  Work run_async(const worker_sdk::Operation& operation, const CallOptions& options) {
    const worker_sdk::Signature& what = operation.what;
    const Caller here(*this, what);
    const auto timeout = timeout_of(what, options);
    const bool of_device = is_devices(what, options);
    const bool queued = roster->size() > 1 && !of_device;
    if (queued) start_queue(what);  // Before this rank counts a call that its peers do not.
    const worker_sdk::Call call = number(what);
    auto state = std::make_shared<WorkState>();
    if (of_device) {
      state->pending = enqueue(call, timeout, operation.arrays, options);
      state->stream = stream_of(options);
      return Work(std::move(state));
    }
    std::function<void()> task = [this, call, timeout, arrays = operation.arrays] {
      perform(call, timeout,
              [&](const worker_sdk::Call& begun) { backend->carry_out(begun, arrays); });
    };
    if (queued) return Work(queue.post(std::move(task)));
    worker_sdk::WorkQueue::carry_out(task, *state);
    return Work(std::move(state));
  }

  std::shared_ptr<void> allocate(std::size_t bytes) {
    const worker_sdk::Signature what{.kind = worker_sdk::OpKind::kAllocate, .count = bytes};
    const Caller here(*this, what);
    std::shared_ptr<void> memory;
    perform_in_turn(number(what), op_timeout, [&](const worker_sdk::Call& begun) {
      memory = backend->allocate(begun, bytes);
    });
    return memory;
  }

  void start_queue(const worker_sdk::Signature& what) {
    try {
      queue.start();
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::system,
                  {.rank = roster->rank, .host = host(), .operation = worker_sdk::to_string(what)},
                  std::string("no thread for asynchronous operations: ") + error.what());
    }
  }

  // Carried out by a device, behind the host's back?
  bool is_devices(const worker_sdk::Signature& what, const CallOptions& options) const {
    const bool always_hosts =
        what.kind == worker_sdk::OpKind::kBarrier || what.kind == worker_sdk::OpKind::kAllocate;
    return device && !options.on_host && !always_hosts;
  }

  std::optional<Stream> stream_of(const CallOptions& options) const {
    return options.stream ? options.stream : stream;
  }

  std::shared_ptr<worker_sdk::Pending> enqueue(worker_sdk::Call call,
                                               std::chrono::milliseconds timeout,
                                               const worker_sdk::Arrays& arrays,
                                               const CallOptions& options) {
    const worker_sdk::InCollective here = begin(call, timeout);
    try {
      return device->enqueue(call, arrays, stream_of(options).value_or(nullptr));
    } catch (const Error& error) {
      die(error);
      throw;
    }
  }

  // `after` waits for it, or else this thread.
  void await(const worker_sdk::Call& call, worker_sdk::Pending& pending,
             std::optional<Stream> after) {
    const worker_sdk::InCollective here(*progress, call, plan.job_ranks.empty());
    try {
      if (after) return pending.follow(*after);
      pending.wait_until(worker_sdk::Clock::time_point::max());
    } catch (const Error& error) {
      die(error);
      throw;
    }
  }

  void abort() noexcept {
    if (!aborted.exchange(true)) progress->note_failure(ErrorKind::aborted, -1);
    backend->abort();
  }

  // What a smaller group may be made of, if anything.
  std::shared_ptr<worker_sdk::NcclCommunicator> retire() {
    aborted.store(true);
    if (device) return device->retire();
    backend->abort();
    return nullptr;
  }

  // Of a group of some of this one's ranks.
  worker_sdk::Plan plan_among(const std::vector<int>& members, const std::string& prefix) const;

  // Of process_group_shrink.cc: one attempt, whose keys begin with `prefix`.
  std::unique_ptr<Impl> shrunk(const std::string& prefix, const ShrinkOptions& options,
                               std::shared_ptr<worker_sdk::NcclCommunicator> nccl);

  [[noreturn]] void refuse_aborted(const worker_sdk::Call& call) const {
    throw worker_sdk::failure(*roster, call, ErrorKind::aborted, -1, "this rank called abort()");
  }

  void die(const Error& error) {
    progress->note_failure(error.kind(), roster->of_job(error.where().peer));
    die(std::string(error.what()));
  }

  void die(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (first_failure.empty()) first_failure = why;
    dead.store(true, std::memory_order_release);
  }

  [[noreturn]] void refuse_dead(const worker_sdk::Call& call) {
    const std::lock_guard lock(mutex);
    throw worker_sdk::failure(*roster, call, ErrorKind::aborted, -1,
                              "this group is dead since: " + first_failure);
  }

  const worker_sdk::Plan plan;
  const std::shared_ptr<worker_sdk::Progress> progress;  // Sub-groups share their parent's.
  const std::shared_ptr<worker_sdk::NcclSiblings> siblings;
  const std::shared_ptr<void> life;  // Of a group that init() made.
  const std::uint64_t forks = worker_sdk::fork_count();
  std::atomic<bool> busy{false};  // A Caller is there.
  Identity identity;
  std::shared_ptr<const worker_sdk::Roster> roster;
  worker_sdk::Arguments arguments;
  std::shared_ptr<worker_sdk::StoreHost> store_host;
  std::shared_ptr<Store> store;
  const std::unique_ptr<worker_sdk::HostBackend> backend;
  worker_sdk::DeviceBackend* const device;  // The same, if arrays are a device's; else null.
  const std::string backend_name;
  const std::chrono::milliseconds init_timeout;
  const std::chrono::milliseconds op_timeout;
  std::optional<Stream> stream;  // Of calls that name none.
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  std::uint64_t splits = 0;
  std::uint64_t shrinks = 0;
  std::mutex mutex;
  std::string first_failure;
  std::atomic<bool> dead{false};
  std::atomic<bool> aborted{false};
  worker_sdk::WorkQueue queue;  // Last: its thread uses all of the above.
};

}  // namespace ddprun
