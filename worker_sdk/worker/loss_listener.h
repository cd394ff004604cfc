#pragma once
// Receives the agent's notice that a rank is lost and passes it to the groups of this process at
// once. Their operations then end without waiting for a broken connection or for their deadline.
// Owned by Progress, which maps the page (common/progress_page.h).

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/progress_page.h"

namespace ddprun::worker_sdk {

// The agent's notice of a lost rank.
struct LossNotice {
  int rank = -1;  // In the job.
  std::string text;
};

class LossListener {
 public:
  // Must not block, and must not call listen(). Called at most once: by a thread of this class, or
  // by listen() itself if the notice has arrived before.
  using Listener = std::function<void(const LossNotice&)>;

  // The page outlives this.
  explicit LossListener(ProgressPage& page);
  ~LossListener();
  LossListener(const LossListener&) = delete;
  LossListener& operator=(const LossListener&) = delete;

  // Valid until the handle is destroyed, which waits for a running call of the listener. The first
  // listener starts the thread; if the thread cannot be started, no notice is received.
  std::shared_ptr<void> listen(Listener listener);

 private:
  void start();
  void run();

  ProgressPage& page_;
  const std::uint64_t forks_;
  std::mutex mutex_;
  std::list<Listener> listeners_;
  bool notified_ = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Empty until the agent has written a notice.
std::optional<LossNotice> read_loss(const ProgressPage& page);

// Sleeps until the agent has written one. Empty: the caller was woken in order to stop.
std::optional<LossNotice> await_loss(ProgressPage& page, const std::atomic<bool>& stopping);

}  // namespace ddprun::worker_sdk
