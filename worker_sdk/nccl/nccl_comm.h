#pragma once
// One communicator of NCCL, never waited for without a deadline: it is non-blocking, and aborted
// from outside if need be. nccl_join.cc makes it, nccl_backend.cc calls it, nccl_watch.cc ends it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/base/operation.h"
#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/nccl/nccl_pending.h"
#include "worker_sdk/transport/diagnosis.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

// The communicators of one process, which fail together: a group and all that were split off it.
// Aborting one waits for its device, on which kernels of another may spin for the same lost peer.
// So the first that fails also dooms the others, each of which is aborted by its own watch at the
// same time. Used by nccl_watch.cc; made by ProcessGroup::init, handed on by split, made anew by
// shrink.
class NcclWatch;

class NcclSiblings {
 public:
  // The failure that came first.
  struct First {
    std::shared_ptr<NcclFate> fate;  // Its `failure` follows soon.
    std::shared_ptr<const Roster> roster;
    Cause cause = Cause::kLost;
    int suspect = -1;  // A rank of the job.
  };

  // `gone`: ranks of the job that a smaller group has left behind.
  explicit NcclSiblings(std::shared_ptr<const Progress> progress, std::set<int> gone = {})
      : progress_(std::move(progress)), gone_(std::move(gone)) {}

  bool add(NcclWatch& watch);  // True: another has failed already.
  void remove(NcclWatch& watch);
  void fail(const NcclWatch& watch, First first);  // Dooms the others, unless they are already.
  std::optional<First> first() const;

  // The agent's notice of a lost rank.
  std::optional<LossNotice> loss_notice() const;
  const std::set<int>& gone() const { return gone_; }

 private:
  const std::shared_ptr<const Progress> progress_;
  const std::set<int> gone_;
  mutable std::mutex mutex_;  // Taken before a watch's own.
  std::vector<NcclWatch*> watches_;
  std::optional<First> first_;
};

struct NcclCommOptions {
  int device = 0;
  int rank = 0, size = 1;
  std::vector<NcclUniqueId> ids;  // One per root.
  std::string name;
  int max_ctas = 0;         // 0: NCCL's choice.
  bool may_shrink = false;  // revoke() must keep what shrink() needs.
};

// A call of NCCL in a thread of its own, which may outlive its caller.
struct NcclCallApart {
  bool returns_before(Clock::time_point deadline) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, deadline, [&] { return returned; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
};

constexpr std::chrono::milliseconds kAbortPatience{10'000};  // Of NcclCommunicator::abort().

class NcclCommunicator {
 public:
  // Begins to join the others; status() reports when that is done.
  NcclCommunicator(std::shared_ptr<const GpuRuntime> gpu, NcclCommOptions options);
  ~NcclCommunicator();  // Aborts, unless finish() or abort() was called.
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // kNcclSuccess, kNcclInProgress, or the first error, which stays. Never blocks.
  int status();
  // Waits until the last call is no longer in progress, or `give_up` returns true.
  int settle(const std::function<bool()>& give_up);
  using Use = std::function<int(const NcclApi&, NcclComm)>;
  // Makes a call of NCCL; kNcclInvalidUsage after abort(). Whatever it returns, the call may be in
  // progress, as some functions of NCCL return success all the same: status() reports that.
  int call(const Use& what);
  // Like call(), for functions that must not be called while another one is in progress and do not
  // check that themselves. Waits for the other one, for some seconds.
  int call_alone(const Use& what);
  std::string explain(int status);  // NCCL's text.

  // Frees the streams and the peers' connections. Any thread; returns when it is done. If NCCL does
  // not return within `limit`, the process ends: nothing else would free the device.
  void abort(std::chrono::milliseconds limit);
  // Frees the streams like abort(), but keeps the rest for shrink(); from then on call() refuses.
  // Aborts if NCCL cannot revoke, does not within `limit`, or shrink() is not wanted. `in_graphs`:
  // there are captured operations; ncclCommAbort does not return before their graphs are gone,
  // though the streams are free soon. So this does not wait until it returns; the next abort()
  // does.
  void revoke(std::chrono::milliseconds limit, std::chrono::milliseconds abort_limit,
              bool in_graphs);
  bool is_revoked();
  // For a revoked communicator: makes another one without `excluded`, together with all other
  // ranks; or returns why there is none. In either case all ranks have to abort this one then.
  std::pair<std::unique_ptr<NcclCommunicator>, std::string> shrink(
      std::vector<int> excluded, NcclCommOptions options, const std::function<bool()>& give_up);
  // Ends the communicator while no operation is in progress; after the deadline, like abort(). NCCL
  // itself may wait for the peers of this host to end, too: if one does not, this one is left
  // behind, with a warning.
  void finish(Clock::time_point deadline);

  const std::shared_ptr<const GpuRuntime>& runtime() const { return gpu_; }
  int device() const { return options_.device; }

 private:
  NcclCommunicator(std::shared_ptr<const GpuRuntime> gpu, NcclCommOptions options, NcclComm comm)
      : gpu_(std::move(gpu)), options_(std::move(options)), comm_(comm) {}
  NcclComm take();
  // Valid also if take() could not lock the gate.
  NcclComm current() { return std::atomic_ref(comm_).load(); }
  std::unique_lock<std::mutex> lock_soon();  // Owns nothing if another thread's call does not end.
  void begin_abort();
  bool ended_within(std::chrono::milliseconds limit);
  NcclComm take_for_revocation();
  int call_unless_taken(NcclComm comm, const Use& what);
  void keep_error(int status);

  const std::shared_ptr<const GpuRuntime> gpu_;
  const NcclCommOptions options_;
  std::mutex gate_;  // One thread at a time may call NCCL; abort() waits for it only a while.
  NcclComm comm_ = nullptr;
  bool revoked_ = false;
  int error_ = kNcclSuccess;
  std::string text_;  // NCCL's text for `error_`.
  std::mutex ending_gate_;
  std::shared_ptr<NcclCallApart> ended_;  // The call of begin_abort().
};

// The exit status of a process that could not abort its communicators.
constexpr int kAbortHangs = 76;

}  // namespace ddprun::worker_sdk
