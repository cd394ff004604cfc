#pragma once
// Lets Gloo exchange its addresses through our Store. Only gloo_backend.cc uses this.

#include <gloo/rendezvous/store.h>

#include <algorithm>

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(ddprun::Store& store, Clock::time_point deadline)
      : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    store_.set(key, {value.data(), value.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(key, left());
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys, left()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_.wait(keys, std::min(timeout, left()));
  }

 private:
  std::chrono::milliseconds left() const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  ddprun::Store& store_;
  Clock::time_point deadline_;
};

}  // namespace ddprun::worker_sdk
