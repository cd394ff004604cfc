#pragma once
// What the StoreMachine remembers of one connection; for store_machine.cc and store_ops.cc only.

#include <optional>
#include <string>
#include <vector>

#include "common/store/store_machine.h"

namespace ddprun::store {

struct StoreMachine::Connection {
  explicit Connection(const StoreLimits& limits) : reader(limits) {}

  StoreReader reader;
  std::vector<std::string> watched;
  // The queue whose new element ended this connection's wait, until it has taken it or gone on.
  std::optional<std::string> queue_turn;
  std::size_t reply_bytes = 0;  // Answered to the current feed().
};

// What a watching client is told (1.13's numbers).
enum StoreChange { kUpdated = 0, kCreated = 1, kDeleted = 2, kWatchBegun = 3 };

// The text of the answer to `connection` under construction at the end of `replies`.
std::string& reply_to(int connection, std::vector<StoreReply>& replies);

}  // namespace ddprun::store
