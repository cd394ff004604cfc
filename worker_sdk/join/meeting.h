#pragma once
// Rounds of "everyone says something, rank 0 answers all", through the store: a constant number of
// keys for each rank, and one reader of all of them. Used by join.cc before ranks are connected.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class Meeting {
 public:
  // `shown`: what each rank is called in errors, by rank. Empty: its number.
  Meeting(Store& keys, int rank, int size, Clock::time_point deadline, std::vector<int> shown = {})
      : keys_(keys), rank_(rank), size_(size), deadline_(deadline), shown_(std::move(shown)) {}

  // Says `mine` under `topic` and returns rank 0's answer, which `decide` makes of what all ranks
  // have said. If ranks do not come before the deadline, or `decide` throws Error, all ranks throw
  // the same.
  using Decide = std::function<std::string(const std::vector<std::string>& said)>;
  std::string hold(const std::string& topic, const std::string& mine, const Decide& decide);

 private:
  std::string preside(const std::string& topic, const Decide& decide);
  std::vector<std::string> listen(const std::string& topic);
  [[noreturn]] void throw_absence(const std::string& topic);

  Store& keys_;
  const int rank_;
  const int size_;
  const Clock::time_point deadline_;
  const std::vector<int> shown_;
};

}  // namespace ddprun::worker_sdk
