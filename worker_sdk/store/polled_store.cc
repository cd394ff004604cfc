#include "worker_sdk/store/polled_store.h"

#include "worker_sdk/base/retry.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{10};  // Between two questions.

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
  bool there = false;
  const auto attempt = [&] {
    there = check(keys);
    return there || (fence_ && fence_->is_raised());
  };
  const bool ended = retry_until(deadline_after(timeout), attempt, kLongestPause);
  if (there) return;
  const std::string what = "waiting for \"" + keys.front() + "\"";
  if (ended) throw Error(ErrorKind::aborted, {.operation = "wait"}, what + " was given up");
  throw Error(ErrorKind::timed_out, {.operation = "wait"}, what);
}

bool PolledStore::erase(std::string_view key) {
  const std::lock_guard lock(keys_->mutex);
  return keys_->inner->erase(key);
}

std::shared_ptr<Store> fenced(const Store& polled, std::shared_ptr<RoundFence> fence) {
  return std::make_shared<PolledStore>(dynamic_cast<const PolledStore&>(polled), std::move(fence));
}

std::shared_ptr<Store> fenced_file(const std::string& path, std::shared_ptr<RoundFence> fence) {
  std::shared_ptr<Store> store = open_file_store(path);
  return fence ? std::make_shared<PolledStore>(std::move(store), std::move(fence)) : store;
}

}  // namespace ddprun::worker_sdk
