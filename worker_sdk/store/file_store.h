#pragma once
// Wraps a store of the program's of which only calls that return at once are used: some serve one
// caller at a time, so that a waiting call keeps the key from being set. Waiting is repeated
// polling. Used by groups that are created over such a store.

#include <memory>
#include <mutex>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"

namespace ddprun::worker_sdk {

// Usable from any thread: one at a time is in `inner`.
class PolledStore : public Store {
 public:
  // `fence`, if any, ends waits once it is raised.
  PolledStore(std::shared_ptr<Store> inner, std::shared_ptr<RoundFence> fence)
      : keys_(std::make_shared<Keys>(std::move(inner))), fence_(std::move(fence)) {}
  // The same keys, with another fence.
  PolledStore(const PolledStore& other, std::shared_ptr<RoundFence> fence)
      : keys_(other.keys_), fence_(std::move(fence)) {}

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool erase(std::string_view key) override;

 private:
  struct Keys {
    explicit Keys(std::shared_ptr<Store> store) : inner(std::move(store)) {}
    std::mutex mutex;
    const std::shared_ptr<Store> inner;
  };

  const std::shared_ptr<Keys> keys_;
  const std::shared_ptr<RoundFence> fence_;
};

// A store with the keys of `polled`, a PolledStore, and another fence.
std::shared_ptr<Store> fenced(const Store& polled, std::shared_ptr<RoundFence> fence);

// The store in that file. Without a fence it does its own waiting.
std::shared_ptr<Store> fenced_file(const std::string& path, std::shared_ptr<RoundFence> fence);

}  // namespace ddprun::worker_sdk
