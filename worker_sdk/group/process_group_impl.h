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
        backend_name(backend->name()),
        init_timeout(options.init_timeout),
        op_timeout(options.op_timeout),
        agents_word(hear_agent()) {}

  ~Impl() {
    if (!queue.wait_idle(op_timeout)) backend->abort();
  }

  worker_sdk::Call number(const worker_sdk::Signature& what) {
    const bool between_two =
        what.kind == worker_sdk::OpKind::kSend || what.kind == worker_sdk::OpKind::kRecv;
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

  template <class Body>
  void perform(worker_sdk::Call call, std::chrono::milliseconds timeout, bool on_host,
               const Body& body) {
    call.start = worker_sdk::Clock::now();
    call.deadline = worker_sdk::deadline_after(call.start, timeout);
    if (dead.load(std::memory_order_acquire)) refuse_dead(call);
    const worker_sdk::InCollective here(*progress, call, plan.job_ranks.empty());
    try {
      backend->check(call);
      body(on_host ? backend->host() : *backend, call);
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

  template <class Body>
  void run(const worker_sdk::Signature& what, const CallOptions& options, const Body& body) {
    const Caller here(*this, what);
    const auto timeout = timeout_of(what, options);
    const worker_sdk::Call call = number(what);
    if (is_devices(what, options)) return await_launched(call, timeout, options, body);
    const bool on_host = options.on_host;
    if (queue.idle()) return perform(call, timeout, on_host, body);
    Work(queue.post([=, this] { perform(call, timeout, on_host, body); })).wait();
  }

  template <class Body>
  Work run_async(const worker_sdk::Signature& what, const CallOptions& options, const Body& body) {
    const Caller here(*this, what);
    const auto timeout = timeout_of(what, options);
    const bool queued = roster->size() > 1 && !is_devices(what, options);
    if (queued) start_queue(what);  // Before this rank counts a call that its peers do not.
    const worker_sdk::Call call = number(what);
    if (is_devices(what, options)) {
      auto state = std::make_shared<WorkState>();
      state->pending = launch(call, timeout, options, body);
      state->stream = stream_of(options);
      return Work(std::move(state));
    }
    const bool on_host = options.on_host;
    std::function<void()> operation = [=, this] { perform(call, timeout, on_host, body); };
    if (queued) return Work(queue.post(std::move(operation)));
    auto state = std::make_shared<WorkState>();
    worker_sdk::WorkQueue::carry_out(operation, *state);
    return Work(std::move(state));
  }

  // What the agent says of a lost rank ends what is under way.
  std::shared_ptr<void> hear_agent() {
    if (roster->size() == 1) return nullptr;
    return progress->listen([this](const worker_sdk::AgentsWord& word) {
      const int lost = roster->from_job(word.rank);
      if (lost >= 0 && lost != roster->rank) backend->lose(lost, word.text);
    });
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
    return backend->device() && !options.on_host && !always_hosts;
  }

  std::optional<Stream> stream_of(const CallOptions& options) const {
    return options.stream ? options.stream : stream;
  }

  template <class Body>
  std::shared_ptr<worker_sdk::Pending> launch(worker_sdk::Call call,
                                              std::chrono::milliseconds timeout,
                                              const CallOptions& options, const Body& body) {
    call.start = worker_sdk::Clock::now();
    call.deadline = worker_sdk::deadline_after(call.start, timeout);
    if (dead.load(std::memory_order_acquire)) refuse_dead(call);
    const worker_sdk::InCollective here(*progress, call, plan.job_ranks.empty());
    try {
      backend->check(call);
      return backend->device()->launch(call, stream_of(options).value_or(nullptr),
                                       [&] { body(*backend, call); });
    } catch (const Error& error) {
      die(error);
      throw;
    }
  }

  template <class Body>
  void await_launched(const worker_sdk::Call& call, std::chrono::milliseconds timeout,
                      const CallOptions& options, const Body& body) {
    const auto pending = launch(call, timeout, options, body);
    const worker_sdk::InCollective here(*progress, call, plan.job_ranks.empty());
    try {
      const auto after = stream_of(options);
      if (after) return pending->follow(*after);
      pending->wait_until(worker_sdk::Clock::time_point::max());
    } catch (const Error& error) {
      die(error);
      throw;
    }
  }

  void abort() noexcept {
    if (!aborted.exchange(true)) progress->note_failure(ErrorKind::aborted, -1);
    backend->abort();
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
  std::unique_ptr<worker_sdk::Backend> backend;
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
  const std::shared_ptr<void> agents_word;  // Is heard until here.
  worker_sdk::WorkQueue queue;              // Last: its thread uses all of the above.
};

}  // namespace ddprun
