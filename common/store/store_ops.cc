// What each operation of the store does. The table of requests and answers is in docs/protocol.md.

#include <algorithm>

#include "common/assert.h"
#include "common/store/store_connection.h"
#include "common/store/store_wire.h"

namespace ddprun::store {
std::string& StoreMachine::Turn::reply() const { return reply_to(id, replies); }

Result<void> StoreMachine::answer(Turn& turn) {
  const StoreRequest& request = turn.request;
  if (request.op == StoreOp::kQueuePop && turn.connection.queue_turn == request.keys[0]) {
    turn.connection.queue_turn.reset();
  }
  // What the client asks now comes after whatever it waited for, see the head of store_machine.h.
  give_up_wait(turn.id, turn.connection, turn.replies);
  switch (request.op) {
    case StoreOp::kValidate: return {};
    case StoreOp::kPing:
      append_u32(turn.reply(), static_cast<std::uint32_t>(request.number));
      return {};
    case StoreOp::kSet:
      return store(request.keys[0], std::move(turn.request.values[0]), turn.replies);
    case StoreOp::kCompareSet: return compare_set(turn);
    case StoreOp::kGet: return answer_text(turn, value_of(request.keys[0]));
    case StoreOp::kAdd: return add(turn);
    case StoreOp::kCheck: return check(turn);
    case StoreOp::kWait: return wait(turn);
    case StoreOp::kCancelWait: append_u8(turn.reply(), kWaitCanceled); return {};
    case StoreOp::kKeyCount:
      append_i64(turn.reply(), static_cast<std::int64_t>(table_.size()));
      return {};
    case StoreOp::kWatch: return watch(turn);
    case StoreOp::kDelete: return remove(turn);
    case StoreOp::kAppend: return append(turn);
    case StoreOp::kMultiGet: return multi_get(turn);
    case StoreOp::kMultiSet: return multi_set(turn);
    case StoreOp::kQueuePush: return queue_push(turn);
    case StoreOp::kQueuePop: return queue_pop(turn);
    case StoreOp::kQueueLength: return queue_length(turn);
    case StoreOp::kListKeys: return list_keys(turn);
    case StoreOp::kBarrier: return barrier(turn);
  }
  DDPRUN_ASSERT(false);
  return {};
}

// Short requests can ask for long answers, so the answers to one feed() are bounded.
Result<void> StoreMachine::answer_text(Turn& turn, std::string_view text) {
  turn.connection.reply_bytes += text.size() + 8;
  if (turn.connection.reply_bytes > limits_.reply_bytes_max) {
    return bad_message("answering store requests with more than " +
                       std::to_string(limits_.reply_bytes_max) + " bytes");
  }
  append_string(turn.reply(), text);
  return {};
}

Result<void> StoreMachine::compare_set(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  const std::string& expected = turn.request.values[0];
  const std::string& desired = turn.request.values[1];
  const std::string* const present = table_.find(key);
  if (!present && !expected.empty()) return answer_text(turn, expected);
  if (present && *present != expected) return answer_text(turn, *present);
  Result<void> stored = store(key, desired, turn.replies);
  if (!stored) return stored;
  return answer_text(turn, desired);
}

Result<std::int64_t> StoreMachine::add_to(const std::string& key, std::int64_t delta,
                                          std::vector<StoreReply>& replies) {
  const Result<std::int64_t> sum = table_.sum(key, delta);
  if (!sum) return sum;
  const Result<void> stored = store(key, std::to_string(*sum), replies);
  if (!stored) return stored.error();
  return sum;
}

Result<void> StoreMachine::add(Turn& turn) {
  const Result<std::int64_t> sum = add_to(turn.request.keys[0], turn.request.number, turn.replies);
  if (!sum) return sum.error();
  append_i64(turn.reply(), *sum);
  return {};
}

Result<void> StoreMachine::append(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  std::string& more = turn.request.values[0];
  const std::string* const value = table_.find(key);
  if (!value) return store(key, std::move(more), turn.replies);
  const std::string before = watchers_.contains(key) ? *value : std::string();
  Result<void> appended = table_.append(key, more);
  if (appended) tell_watchers(kUpdated, key, before, turn.replies);
  return appended;
}

Result<void> StoreMachine::multi_set(Turn& turn) {
  for (std::size_t i = 0; i < turn.request.keys.size(); ++i) {
    Result<void> stored =
        store(turn.request.keys[i], std::move(turn.request.values[i]), turn.replies);
    if (!stored) return stored;
  }
  return {};
}

Result<void> StoreMachine::multi_get(Turn& turn) {
  for (const std::string& key : turn.request.keys) {
    Result<void> answered = answer_text(turn, value_of(key));
    if (!answered) return answered;
  }
  return {};
}

Result<void> StoreMachine::list_keys(Turn& turn) {
  append_i64(turn.reply(), static_cast<std::int64_t>(table_.size()));
  for (const auto& [key, value] : table_) {
    Result<void> answered = answer_text(turn, key);
    if (!answered) return answered;
  }
  return {};
}

Result<void> StoreMachine::remove(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  const std::optional<std::string> erased = table_.erase(key);
  if (erased) tell_watchers(kDeleted, key, *erased, turn.replies);
  append_i64(turn.reply(), erased ? 1 : 0);
  return {};
}

Result<void> StoreMachine::check(Turn& turn) {
  const std::vector<std::string>& keys = turn.request.keys;
  const bool all =
      std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return there(key); });
  append_u8(turn.reply(), all ? kAllThere : 1);
  return {};
}

Result<void> StoreMachine::wait(Turn& turn) {
  std::vector<std::string> missing;
  for (std::string& key : turn.request.keys) {
    if (!there(key)) missing.push_back(std::move(key));
  }
  if (missing.empty()) {
    append_u8(turn.reply(), kStopWaiting);
    return {};
  }
  if (key_waits_.size() + missing.size() > limits_.keys_max) {
    return bad_message("waiting for more than " + std::to_string(limits_.keys_max) + " store keys");
  }
  key_waits_.begin(turn.id, missing);
  return {};
}

Result<void> StoreMachine::barrier(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  const Result<std::int64_t> arrived = add_to(key, 1, turn.replies);
  if (!arrived) return arrived.error();
  if (*arrived < turn.request.number) {
    barrier_waits_.begin(turn.id, {key});
    return {};
  }
  std::vector<int> done;
  barrier_waits_.wake_all(key, done);
  for (const int waiter : done) append_u8(reply_to(waiter, turn.replies), kStopWaiting);
  append_u8(turn.reply(), kStopWaiting);
  return {};
}

Result<void> StoreMachine::watch(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  Result<void> room = table_.reserve(1, kStoreEntryBytes + key.size());
  if (!room) return room;
  watchers_[key].push_back(turn.id);
  turn.connection.watched.push_back(key);
  append_u8(turn.reply(), kWatchBegun);
  return {};
}

Result<void> StoreMachine::queue_push(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  std::string& element = turn.request.values[0];
  Result<void> room = table_.reserve(1, kStoreEntryBytes + key.size() + element.size());
  if (!room) return room;
  queues_[key].push_back(std::move(element));
  wake_queue_waiter(key, turn.replies);
  return {};
}

Result<void> StoreMachine::queue_pop(Turn& turn) {
  const std::string& key = turn.request.keys[0];
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) {
    append_i64(turn.reply(), 0);
    return {};
  }
  DDPRUN_ASSERT(!queue->second.empty());
  append_i64(turn.reply(), static_cast<std::int64_t>(queue->second.size()));
  const std::string element = std::move(queue->second.front());
  queue->second.pop_front();
  table_.release(1, kStoreEntryBytes + key.size() + element.size());
  if (queue->second.empty()) queues_.erase(queue);
  return answer_text(turn, element);
}

Result<void> StoreMachine::queue_length(Turn& turn) {
  const auto queue = queues_.find(turn.request.keys[0]);
  const std::size_t length = queue == queues_.end() ? 0 : queue->second.size();
  append_i64(turn.reply(), static_cast<std::int64_t>(length));
  return {};
}

}  // namespace ddprun::store
