#include "worker_sdk/store/polled_store.h"

#include <algorithm>
#include <thread>

#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Between two questions: at first short, as mostly all ranks come at once.
constexpr microseconds kFirstPause{200};
constexpr microseconds kLongestPause{10000};

// Of a key that is there.
constexpr milliseconds kAtOnce{1000};

}  // namespace

void PolledStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(keys_->mutex);
  keys_->inner->set(key, value);
}

std::string PolledStore::get(std::string_view key, milliseconds timeout) {
  wait({std::string(key)}, timeout);
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->get(key, kAtOnce);
}

std::int64_t PolledStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->add(key, delta);
}

bool PolledStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->check(keys);
}

void PolledStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  microseconds pause = kFirstPause;
  while (!check(keys)) {
    if (fence_ && fence_->is_raised()) {
      throw Error(ErrorKind::aborted, {.operation = "wait"},
                  "the wait for \"" + keys.front() + "\" was ended");
    }
    if (Clock::now() >= deadline) {
      throw Error(ErrorKind::timed_out, {.operation = "wait"},
                  "waiting for \"" + keys.front() + "\"");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

bool PolledStore::erase(std::string_view key) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->erase(key);
}

}  // namespace ddprun::worker_sdk
