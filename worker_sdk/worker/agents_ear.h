#pragma once
// Hears at once what the agent says of a rank that is gone, and passes it on to the groups of this
// process, whose operations then end without waiting for a connection to break or for their
// deadline. Owned by Progress, which maps the page (common/progress_page.h).

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

// What the agent says of a rank that is gone.
struct AgentsWord {
  int rank = -1;  // Of the job.
  std::string text;
};

class AgentsEar {
 public:
  // Must not block, and must not call listen(). Called once at most, by a thread of this class, or
  // by listen() itself if the word has come before.
  using Listener = std::function<void(const AgentsWord&)>;

  // The page outlives this.
  explicit AgentsEar(ProgressPage& page);
  ~AgentsEar();
  AgentsEar(const AgentsEar&) = delete;
  AgentsEar& operator=(const AgentsEar&) = delete;

  // Until the handle goes, which waits for a call of the listener that is under way. The first
  // listener starts the thread; where there can be none, nothing is heard.
  std::shared_ptr<void> listen(Listener listener);

 private:
  void start();
  void run();

  ProgressPage& page_;
  const std::uint64_t forks_;
  std::mutex mutex_;
  std::list<Listener> listeners_;
  bool heard_ = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Nothing until the agent has said a word.
std::optional<AgentsWord> read_word(const ProgressPage& page);

// Sleeps until the agent has said one. Nothing: the bell was rung because this is to stop.
std::optional<AgentsWord> await_word(ProgressPage& page, const std::atomic<bool>& stopping);

}  // namespace ddprun::worker_sdk
