#pragma once
// The inside of DistributedDataParallel, shared by its public functions.
// distributed_data_parallel.cc has them, the passes, and the preparations before the first pass.

#include <mutex>
#include <span>

#include "worker_sdk/ddp/bucket_flow.h"
#include "worker_sdk/ddp/buckets.h"
#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/timer/timer_shell.h"

namespace ddprun {

struct DistributedDataParallel::Impl {
  enum class Pass { kNone, kLocal, kSynchronised };

  Impl(ProcessGroup& g, std::vector<Parameter> given, const DdpOptions& wanted);

  // distributed_data_parallel.cc
  void connect(ProcessGroup& g);  // The constructor's second half, and reconfigure().
  std::unique_ptr<worker_sdk::BucketSet> make_buckets(worker_sdk::BucketOrder order);
  bool rebuild();
  void complain_if_unfinished() const noexcept;  // For the destructor.
  [[noreturn]] void refuse(const std::string& text) const;
  void require_parameter(std::size_t i) const;
  template <class T>
  void require(const Result<T>& result) const {
    if (result.has_error()) refuse(result.error().context);
  }

  // distributed_data_parallel.cc
  void begin(std::span<const std::size_t> unused);
  void begin_synchronised(std::span<const std::size_t> unused);
  void check_capture() const;
  void mark(std::size_t i);
  void finish();
  void cancel();
  void join();
  int live_ranks(bool has_input);
  void shadow_pass();
  void take_values_of_last();
  void check_values();
  void launch(worker_sdk::Reducer::Released released);

  const DdpOptions options;
  ProcessGroup group;  // A handle of our own: the caller's may be moved from or end.
  std::vector<Parameter> parameters;

  // Guards the members below: gradients may be marked from any thread. Recursive, as a callback may
  // call in again.
  std::recursive_mutex mutex;
  worker_sdk::Reducer reducer;
  std::unique_ptr<worker_sdk::BucketSet> buckets;
  worker_sdk::BucketFlow flow;
  std::unique_ptr<worker_sdk::TimerShell> timer;
  std::vector<bool> touched;  // Marked in a local pass since the last synchronised one.
  bool rebuilt = false;
  Pass pass = Pass::kNone;
  int no_sync_depth = 0;
  std::int64_t passes = 0;  // Synchronised ones of this rank's own, since connect().
};

// Access to the members for as long as it is held: public calls access them only in this way.
class DistributedDataParallel::Locked {
 public:
  explicit Locked(Impl& impl) : impl_(impl), lock_(impl.mutex) {}
  Impl* operator->() const { return &impl_; }

 private:
  Impl& impl_;
  const std::unique_lock<std::recursive_mutex> lock_;
};

}  // namespace ddprun
