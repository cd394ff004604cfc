#pragma once
// The thread that watches over a communicator, for NCCL itself would wait for a lost peer for ever:
//
//   NCCL or CUDA reports an error, an operation is over its deadline, a peer's process is gone
//   (Gloo's connection to it ended, or the agent reports it), a sibling failed, or abort() was
//   called
//     -> the communicator is aborted, which frees the streams, and its siblings at the same time
//     -> Gloo's part of the group queries the peers' statements (diagnosis.h)
//     -> every Work that was not done throws the result
//
// It sleeps while no operation is in progress.

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/nccl/nccl_comm.h"
#include "worker_sdk/nccl/nccl_pending.h"

namespace ddprun::worker_sdk {

class NcclWatch {
 public:
  // `gloo` may be null, in a world of one; else it must outlive this.
  NcclWatch(std::shared_ptr<const Roster> roster, NcclCommunicator& comm, GlooBackend* gloo,
            std::shared_ptr<NcclSiblings> siblings);
  ~NcclWatch();  // When all operations are done or have failed.
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Call this before NCCL puts the operation into the stream. Its time counts from the end of those
  // before it. If NCCL refuses it, fate()->failing is set, and the communicator has an error or is
  // over the deadline.
  void add(std::shared_ptr<NcclPending> operation);
  // An operation is captured in a graph, which may be launched at any time: it has no deadline, but
  // from now on the watch looks for all other trouble.
  void keep_polling(const Call& captured);
  void request_abort() noexcept;
  void overdue() noexcept;  // NCCL has not put an operation into the stream by its deadline.
  void doom() noexcept;     // A sibling has failed.
  bool wait_idle(Clock::time_point deadline);

  const std::shared_ptr<NcclFate>& fate() const { return fate_; }

 private:
  struct Entry {
    std::shared_ptr<NcclPending> operation;
    Clock::duration timeout;
  };
  struct Trouble {
    Cause cause = Cause::kLost;
    int suspect = -1;
    std::string text;           // The text of the detector, if there is one.
    int status = kNcclSuccess;  // What NCCL reports, still to be explained.
    enum class Source { kSeen, kAgent, kSibling } source = Source::kSeen;
  };

  void run();
  void drop_finished();
  std::optional<Trouble> poll();
  std::optional<int> lost_peer(const NcclPending* front);
  void fail(const Trouble& trouble);
  std::optional<Trouble> loss_notice() const;
  Error diagnose_with_peers(const Call& call, const Trouble& trouble);
  Error follow_agent(const Call& call, const Trouble& trouble);
  Error follow_sibling(const Call& call);

  const std::shared_ptr<const Roster> roster_;
  NcclCommunicator& comm_;
  GlooBackend* const gloo_;
  const std::shared_ptr<NcclSiblings> siblings_;
  const std::shared_ptr<NcclFate> fate_ = std::make_shared<NcclFate>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;  // Under the mutex.
  Call last_;                  // The operation that began last, under the mutex.
  bool stopping_ = false;
  bool graphs_ = false;  // A graph with an operation exists. Under the mutex.
  std::atomic<bool> abort_requested_{false};
  std::atomic<bool> doomed_{false};
  std::atomic<bool> overdue_{false};
  // Used by the thread alone:
  bool over_ = false;  // The communicator has failed.
  Clock::time_point front_since_{};
  const NcclPending* front_ = nullptr;
  Clock::time_point lost_since_{};
  int polls_since_lost_ = 0;
  std::thread thread_;  // Last.
};

}  // namespace ddprun::worker_sdk
