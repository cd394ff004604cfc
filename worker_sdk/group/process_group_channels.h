#pragma once
// Messages with a tag: each source, destination and tag has a channel, which is a group of those
// two ranks, with a thread of its own. So messages of one channel match in their order, and wait
// for nothing else. The first message of a channel joins its group, on the channel's thread, since
// the other rank may arrive late. Only process_group*.cc include this.

#include <compare>
#include <map>

#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/group/process_group_impl.h"
#include "worker_sdk/transport/diagnosis.h"

namespace ddprun {

class ProcessGroup::Impl::Channels {
 public:
  explicit Channels(Impl& group) : group_(group) {}

  // `message`: a send or recv with checked arguments.
  Work post(const worker_sdk::Operation& message, int tag, std::chrono::milliseconds timeout);
  // From any thread, like lose().
  void abort() noexcept;
  void lose(int job_rank, const std::string& why) noexcept;
  // False: a channel is still busy at the deadline.
  bool wait_idle(worker_sdk::Clock::time_point deadline);

 private:
  struct Name {
    int source = -1;
    int destination = -1;
    int tag = 0;
    auto operator<=>(const Name&) const = default;
  };
  class Channel;

  Impl& group_;
  std::mutex mutex_;
  std::map<Name, std::unique_ptr<Channel>> channels_;
  bool aborted_ = false;
  int lost_rank_ = -1;  // Reported by the agent; a rank of the job.
  std::string why_lost_;
};

class ProcessGroup::Impl::Channels::Channel {
 public:
  Channel(Impl& group, const Name& name);

  Work post(const worker_sdk::Operation& message, std::chrono::milliseconds timeout);
  void abort() noexcept;
  void lose(int job_rank, const std::string& why) noexcept;
  bool wait_idle(std::chrono::milliseconds limit) { return queue_.wait_idle(limit); }

 private:
  void carry_out(const worker_sdk::Operation& message, std::chrono::milliseconds timeout);
  void join(worker_sdk::Call call);

  Impl& group_;
  const Name name_;
  const worker_sdk::Plan plan_;
  const std::shared_ptr<worker_sdk::Progress> progress_;  // Without a page: that is the group's.
  const std::shared_ptr<worker_sdk::RoundFence> fence_;   // Ends the attempt to join.
  std::mutex mutex_;
  bool aborted_ = false;
  std::shared_ptr<Impl> pair_;   // Null until both ranks have joined.
  std::string not_met_;          // Why the two have not joined, and never will.
  worker_sdk::LostPeer lost_;    // A rank of the group, lost before the two met.
  worker_sdk::WorkQueue queue_;  // Last: its thread uses all of the above.
};

}  // namespace ddprun
