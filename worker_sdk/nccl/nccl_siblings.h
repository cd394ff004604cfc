#pragma once
// The communicators of one process, which fail together: a group and all that were split off it. To
// abort one waits for its device, on which kernels of another may spin for the same lost peer; so
// whichever fails first takes the others along, each aborted by its own watch at the same time.
// Used by nccl_watch.cc; made by ProcessGroup::init, handed on by split, made
// anew by shrink.

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "worker_sdk/nccl/nccl_pending.h"
#include "worker_sdk/transport/diagnosis.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

class NcclWatch;

class NcclSiblings {
 public:
  // The failure that came first.
  struct First {
    std::shared_ptr<NcclFate> fate;  // Whose `failure` follows soon.
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

  // The agent's, of a rank that is gone.
  std::optional<AgentsWord> agents_word() const;
  const std::set<int>& gone() const { return gone_; }

 private:
  const std::shared_ptr<const Progress> progress_;
  const std::set<int> gone_;
  mutable std::mutex mutex_;  // Taken before a watch's own.
  std::vector<NcclWatch*> watches_;
  std::optional<First> first_;
};

}  // namespace ddprun::worker_sdk
