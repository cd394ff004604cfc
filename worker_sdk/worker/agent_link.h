#pragma once
// The worker's end of its link to the agent (common/worker_link.h): it receives seats and orders to
// raise fences, and sends the worker's messages. A thread of this class reads the link. It takes no
// lock that a collective may hold, so that a fence is answered whatever the program computes. Used
// by worker_sdk/job.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/system/descriptors.h"
#include "common/worker_link.h"
#include "ddprun/error.h"
#include "worker_sdk/base/round_fence.h"

namespace ddprun::worker_sdk {

// A place in a round, and the end of that round.
struct HeldSeat {
  worker_link::Seated place;
  std::shared_ptr<RoundFence> fence;
};

class AgentLink {
 public:
  // `variable`: the value of DDPRUN_WORKER_LINK; if it is null or empty, there is no link, and the
  // result is null. Takes the descriptor over. Throws Error(bad_environment) if it is not such a
  // link, Error(bad_argument) if it was taken over before.
  static std::unique_ptr<AgentLink> open(const char* variable);

  // Starts the thread. Throws Error(system) if there can be none.
  explicit AgentLink(UniqueFd socket);
  ~AgentLink();  // Closes the link. In a forked child it does nothing.
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void send(const worker_link::WorkerMessage& message);

  // The step count for LeftRound messages.
  void set_committed(std::int64_t steps) { committed_.store(steps); }

  // Waits for a seat in a round after `round` that is not over. Throws Error if the link ends.
  HeldSeat next_seat(int round);

  // Waits until the fence of `seat` is raised, at most `patience`. False: it was not raised.
  bool await_fence(const HeldSeat& seat, std::chrono::milliseconds patience);

  // The membership is to change at a boundary between steps of this round.
  bool wants_change(int round) const { return change_.load() >= round; }

  // Raises the fence of this worker's round and reports to the agent that the worker has left it.
  void leave(const HeldSeat& seat, const std::string& why);

  // Throws Error if the agent has sent a message that cannot be understood, or has refused this
  // worker.
  void require_sound() const;

 private:
  void run();
  bool read_one();  // False: the link has ended.
  void take(const worker_link::AgentMessage& message);
  void take(const worker_link::Seated& seated);
  void take(const worker_link::Fence& fence);
  void end(ErrorKind kind, const std::string& why);
  void wake();

  const std::uint64_t forks_ = fork_count();
  UniqueFd socket_;
  UniqueFd stop_;  // An eventfd.
  std::atomic<std::int64_t> committed_{0};
  std::atomic<int> change_{-1};  // The round that is to end.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<HeldSeat> seat_;  // The newest.
  int fenced_ = -1;               // All rounds up to this one are over.
  std::optional<Error> ended_;    // Why the link has ended.
  bool unsound_ = false;          // Ended by a fault, not by the end of the agent.
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
