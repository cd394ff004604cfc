#pragma once
// The worker's end of its link to the agent (common/worker_link.h): seats come in, fences are
// raised, and what the worker has to say goes out. A thread of this class reads the link. It takes
// no lock that a collective may hold, so that a fence is answered whatever the program computes.
// Used by worker_sdk/job.

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
  // `variable`: the value of DDPRUN_WORKER_LINK; null or empty: there is no link, and no result.
  // Takes the descriptor over. Throws Error(bad_environment) if it is no such link,
  // Error(bad_argument) if it was taken over before.
  static std::unique_ptr<AgentLink> open(const char* variable);

  // Starts the thread. Throws Error(system) if there can be none.
  explicit AgentLink(UniqueFd socket);
  ~AgentLink();  // Closes the link. In a forked child it does nothing.
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void send(const worker_link::WorkerMessage& message);

  // What LeftRound says.
  void set_committed(std::int64_t steps) { committed_.store(steps); }

  // Waits for a seat in a round after `round` that is not over. Throws Error if the link ends.
  HeldSeat next_seat(int round);

  // Waits until the fence of `seat` is raised, at most `patience`. False: it is not.
  bool await_fence(const HeldSeat& seat, std::chrono::milliseconds patience);

  // The membership is to change at a boundary between steps of this round.
  bool wants_change(int round) const { return change_.load() >= round; }

  // This worker has left the round by itself: its fence is raised, the agent is informed.
  void leave(const HeldSeat& seat, const std::string& why);

  // Throws Error if the agent has said what cannot be understood, or has refused this worker.
  void require_sound() const;

 private:
  void run();
  bool read_one();  // False: nothing more will come.
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
  int fenced_ = -1;               // No round up to this one goes on.
  std::optional<Error> ended_;    // Why nothing more comes.
  bool unsound_ = false;          // By a fault, not by the end of the agent.
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
