#pragma once
// The store of a world of one: this process's memory. Also what tests give to ranks that are
// threads.

#include <condition_variable>
#include <memory>
#include <mutex>

#include "common/store/store_table.h"
#include "ddprun/store.h"

namespace ddprun::worker_sdk {

class LocalStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool erase(std::string_view key) override;

 private:
  void put(std::string_view key, std::string value, const char* operation);

  std::mutex mutex_;
  std::condition_variable changed_;
  store::StoreTable table_{store::kRankStoreLimits};
};

}  // namespace ddprun::worker_sdk
