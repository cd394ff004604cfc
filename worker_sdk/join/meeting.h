#pragma once
// Rounds of "everyone says something, rank 0 answers all", through the store: a constant number of
// keys for each rank, and one reader of all of them. Used by join.cc before ranks are connected.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class Meeting {
 public:
  // `roster` has no hosts yet.
  Meeting(Store& keys, std::shared_ptr<const Roster> roster, int size, Clock::time_point deadline)
      : keys_(keys),
        roster_(std::move(roster)),
        rank_(roster_->rank),
        size_(size),
        deadline_(deadline) {}

  // Says `mine` under `topic` and returns rank 0's answer, which `decide` makes of what all ranks
  // have said. If ranks do not come before the deadline, or `decide` throws Error, all ranks throw
  // the same.
  using Decide = std::function<std::string(const std::vector<std::string>& said)>;
  std::string hold(const std::string& topic, const std::string& mine, const Decide& decide);

  // For a rank that cannot come any further, because of `error`, which no other rank has seen: the
  // others learn it in whichever of the join's rounds they wait, and throw it.
  static void withdraw(Store& keys, int rank, const Error& error);

 private:
  std::string await_answer(const std::string& topic);
  std::string preside(const std::string& topic, const Decide& decide);
  std::vector<std::string> listen(const std::string& topic);
  [[noreturn]] void throw_absence(const std::string& topic);

  Store& keys_;
  const std::shared_ptr<const Roster> roster_;
  const int rank_;
  const int size_;
  const Clock::time_point deadline_;
};

}  // namespace ddprun::worker_sdk
