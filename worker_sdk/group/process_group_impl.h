#pragma once
// The inside of a ProcessGroup: which threads may call, and the first failure, which ends the
// group. process_group.cc runs its operations. Only process_group*.cc include this.

#include <atomic>
#include <mutex>

#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/group/arguments.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/group/work_queue.h"
#include "worker_sdk/join/join.h"
#include "worker_sdk/join/membership.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun {

struct ProcessGroup::Impl {
  // A thread that calls this group, one at a time; other threads, and forked children, are refused.
  class Caller {
   public:
    Caller(Impl& group, const worker_sdk::Signature& what) : busy_(group.busy) {
      group.require_joined(what);
      if (worker_sdk::GroupInside::refusal) {
        group.refuse(worker_sdk::to_string(what), worker_sdk::GroupInside::refusal);
      }
      if (busy_.exchange(true, std::memory_order_acquire)) group.refuse_second_thread(what);
    }
    ~Caller() { busy_.store(false, std::memory_order_release); }
    Caller(const Caller&) = delete;

   private:
    const worker_sdk::InGroupCall here_;
    std::atomic<bool>& busy_;
  };

  Impl(worker_sdk::Plan how, worker_sdk::Joined joined, const InitOptions& options,
       std::shared_ptr<worker_sdk::Progress> reports,
       std::shared_ptr<worker_sdk::NcclSiblings> others);
  ~Impl();

  [[noreturn]] void refuse(const std::string& operation, const std::string& text) const {
    throw Error(ErrorKind::bad_argument, roster->here(operation), text);
  }
  [[noreturn]] void refuse_second_thread(const worker_sdk::Signature& what) const {
    refuse(worker_sdk::to_string(what),
           "another thread is in a call of this group; one thread at a time may call it");
  }
  // A forked child must not use what this process shares with the other ranks.
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

  // In process_group.cc, the public operations are made of these:
  void run(const worker_sdk::Operation& operation, const CallOptions& options);
  Work run_async(const worker_sdk::Operation& operation, const CallOptions& options);
  std::shared_ptr<void> allocate(std::size_t bytes);
  void carry_out(const worker_sdk::Call& call, const worker_sdk::Arrays& arrays, double factor);
  void carry_out_in_f32(const worker_sdk::Call& call, const worker_sdk::Arrays& arrays,
                        double factor);
  void require_supported(const worker_sdk::Operation& operation) const;
  std::chrono::milliseconds timeout_of(const worker_sdk::Signature& what,
                                       const CallOptions& options) const;
  worker_sdk::Call number(const worker_sdk::Signature& what);
  worker_sdk::InCollective begin(worker_sdk::Call& call, std::chrono::milliseconds timeout);
  template <class Body>
  void perform(worker_sdk::Call call, std::chrono::milliseconds timeout, const Body& body);
  template <class Body>
  void perform_in_turn(const worker_sdk::Call& call, std::chrono::milliseconds timeout,
                       const Body& body);
  void start(worker_sdk::WorkQueue& which, const worker_sdk::Signature& what);
  void perform_message(const worker_sdk::Call& call, std::chrono::milliseconds timeout,
                       const worker_sdk::Arrays& arrays);
  bool has_channel(const worker_sdk::Signature& what, const CallOptions& options) const;
  Work post_message(const worker_sdk::Operation& message, const CallOptions& options);
  bool is_devices(const worker_sdk::Signature& what, const CallOptions& options) const;
  std::optional<Stream> stream_of(const CallOptions& options) const;
  std::shared_ptr<worker_sdk::Pending> enqueue(worker_sdk::Call call,
                                               std::chrono::milliseconds timeout,
                                               const worker_sdk::Arrays& arrays,
                                               const CallOptions& options);
  void await(const worker_sdk::Call& call, worker_sdk::Pending& pending,
             std::optional<Stream> after);

  // In process_group_channels.cc:
  class Channels;
  std::shared_ptr<void> watch_agent();
  bool shut_down(std::chrono::milliseconds limit);
  void abort() noexcept;

  // Aborts. Returns what a smaller group may be made of, or null.
  std::shared_ptr<worker_sdk::NcclCommunicator> retire() {
    aborted.store(true);
    if (device) return device->retire();
    backend->abort();
    return nullptr;
  }

  // The plan for a group of some of this one's ranks.
  worker_sdk::Plan plan_among(const std::vector<int>& members, const std::string& prefix) const;

  // In group_create.cc: one attempt. Its keys begin with `prefix`.
  std::unique_ptr<Impl> shrunk(const std::string& prefix, const ShrinkOptions& options,
                               std::shared_ptr<worker_sdk::NcclCommunicator> nccl);

  [[noreturn]] void refuse_aborted(const worker_sdk::Call& call) const {
    throw worker_sdk::failure(*roster, call, ErrorKind::aborted, -1, "this rank called abort()");
  }

  // Throws if the round is over: that is the reason for any error of an operation in it.
  void refuse_fenced(const worker_sdk::Call& call) {
    const auto word = progress->fence() ? progress->fence()->word() : std::nullopt;
    if (!word) return;
    die("the round is over: " + word->why);
    throw worker_sdk::failure(*roster, call, ErrorKind::membership_changed,
                              roster->from_job(word->lost_rank), "the round is over: " + word->why);
  }

  void die(const Error& error) {
    progress->note_failure(error.kind(), roster->of_job(roster->from_shown(error.where().peer)));
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
  const std::shared_ptr<void> life;  // For a group that init() made.
  const std::uint64_t forks = worker_sdk::fork_count();
  std::atomic<bool> busy{false};  // A Caller is there.
  Identity identity;
  std::shared_ptr<const worker_sdk::Roster> roster;
  worker_sdk::Arguments arguments;
  std::shared_ptr<worker_sdk::StoreHost> store_host;
  std::shared_ptr<Store> store;
  const std::unique_ptr<worker_sdk::HostBackend> backend;
  worker_sdk::DeviceBackend* const device;  // `backend`, if arrays are a device's; else null.
  const std::string backend_name;
  const std::chrono::milliseconds init_timeout;
  const std::chrono::milliseconds op_timeout;
  std::optional<Stream> stream;  // For calls that name none.
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  std::uint64_t splits = 0;
  std::uint64_t shrinks = 0;
  std::mutex mutex;
  std::string first_failure;
  std::atomic<bool> dead{false};
  std::atomic<bool> aborted{false};
  const std::shared_ptr<worker_sdk::Completions> completions =
      std::make_shared<worker_sdk::Completions>();
  std::unique_ptr<Channels> channels;
  std::shared_ptr<void> loss_notice;  // Listens until here.
  worker_sdk::WorkQueue queue;        // Last: its thread uses all of the above.
};

}  // namespace ddprun
