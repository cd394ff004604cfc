#pragma once
// Streams of fake_cuda.cc that are captured for a graph: what was put into them, and what would
// have ended the capture on a GPU. Captures are of CUDA's global mode, in which no thread may make
// a call that waits or takes memory, unless it asked for the relaxed mode.

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace ddprun::test {

class FakeCapture {
 public:
  using Work = std::function<void()>;

  explicit FakeCapture(const void* origin) : origin_(origin) {}

  std::atomic<bool> ended{false};

  void put(const void* stream, Work work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    last_[stream] = work_.size();
  }
  std::size_t last_of(const void* stream) {
    const std::lock_guard lock(mutex_);
    return last_[stream];
  }
  // The origin waits for what `stream` got up to `last`.
  void joined(const void* waiting, const void* stream, std::size_t last) {
    const std::lock_guard lock(mutex_);
    if (waiting == origin_) joined_[stream] = std::max(joined_[stream], last);
  }
  void complain(const std::string& text) {
    const std::lock_guard lock(mutex_);
    complaints_ += text + "; ";
  }
  std::vector<Work> take(std::string& complaints) {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, last] : last_) {
      if (stream != origin_ && joined_[stream] < last) complaints_ += "a stream is not joined; ";
    }
    complaints = complaints_;
    return std::move(work_);
  }

 private:
  const void* const origin_;
  std::mutex mutex_;
  std::vector<Work> work_;
  std::map<const void*, std::size_t> last_, joined_;  // By stream: how much of `work_`.
  std::string complaints_;
};

// Those that are under way in this process.
class FakeCaptures {
 public:
  void add(const std::shared_ptr<FakeCapture>& capture) {
    const std::lock_guard lock(mutex_);
    all_.insert(capture);
  }
  void remove(const std::shared_ptr<FakeCapture>& capture) {
    const std::lock_guard lock(mutex_);
    all_.erase(capture);
  }
  // A call that must not be made now.
  bool forbid(const char* call, bool relaxed) {
    const std::lock_guard lock(mutex_);
    if (relaxed) return false;
    for (const auto& capture : all_) capture->complain(call);
    return !all_.empty();
  }

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<FakeCapture>> all_;
};

}  // namespace ddprun::test
