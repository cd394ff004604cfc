#include "common/store/store_machine.h"

#include <algorithm>
#include <map>

#include "common/assert.h"
#include "common/store/store_wire.h"

namespace ddprun::store {

std::string& reply_to(int connection, std::vector<StoreReply>& replies) {
  if (replies.empty() || replies.back().connection != connection) {
    replies.push_back({connection, {}});
  }
  return replies.back().bytes;
}

StoreMachine::StoreMachine(StoreLimits limits) : limits_(limits), table_(limits) {}
StoreMachine::~StoreMachine() = default;

void StoreMachine::open(int connection) {
  const bool fresh =
      connections_.try_emplace(connection, std::make_unique<Connection>(limits_)).second;
  DDPRUN_ASSERT(fresh);
}

Result<void> StoreMachine::feed(int connection, std::string_view bytes,
                                std::vector<StoreReply>& replies) {
  const auto entry = connections_.find(connection);
  DDPRUN_ASSERT(entry != connections_.end());
  Connection& from = *entry->second;
  from.reader.feed(bytes);
  from.reply_bytes = 0;
  for (;;) {
    const Result<StoreRequest*> request = from.reader.next();
    if (!request) return request.error();
    if (!*request) return {};
    Turn turn{connection, from, **request, replies};
    Result<void> answered = answer(turn);
    if (!answered) return answered;
  }
}

void StoreMachine::close(int connection, std::vector<StoreReply>& replies) {
  const auto entry = connections_.find(connection);
  DDPRUN_ASSERT(entry != connections_.end());
  Connection& gone = *entry->second;
  key_waits_.cancel(connection);
  barrier_waits_.cancel(connection);
  for (const std::string& key : gone.watched) {
    const auto watched = watchers_.find(key);
    if (watched == watchers_.end()) continue;  // Watched twice, and removed at the first mention.
    std::vector<int>& watchers = watched->second;
    const std::size_t removed = std::erase(watchers, connection);
    table_.release(removed, removed * (kStoreEntryBytes + key.size()));
    if (watchers.empty()) watchers_.erase(watched);
  }
  pass_on_queue_turn(gone, replies);
  connections_.erase(entry);
}

std::string_view StoreMachine::value_of(const std::string& key) const {
  const std::string* const value = table_.find(key);
  return value ? std::string_view(*value) : std::string_view();
}

// Sets a value, wakes the clients that wait for the key and notifies those that watch it.
Result<void> StoreMachine::store(const std::string& key, std::string value,
                                 std::vector<StoreReply>& replies) {
  const Result<std::optional<std::string>> before = table_.set(key, std::move(value));
  if (!before) return before.error();
  if (*before) {
    notify_watchers(kUpdated, key, **before, replies);
  } else {
    notify_watchers(kCreated, key, {}, replies);
  }
  std::vector<int> done;
  key_waits_.wake_all(key, done);
  for (const int waiter : done) append_u8(reply_to(waiter, replies), kStopWaiting);
  return {};
}

// To be called after the change.
void StoreMachine::notify_watchers(int change, const std::string& key, std::string_view before,
                                 std::vector<StoreReply>& replies) {
  const auto watched = watchers_.find(key);
  if (watched == watchers_.end()) return;
  const std::string_view after = value_of(key);
  for (const int watcher : watched->second) {
    std::string& out = reply_to(watcher, replies);
    append_u8(out, static_cast<std::uint8_t>(change));
    append_string(out, key);
    append_string(out, before);
    append_string(out, after);
  }
}

void StoreMachine::give_up_wait(int id, Connection& connection, std::vector<StoreReply>& replies) {
  key_waits_.cancel(id);
  barrier_waits_.cancel(id);
  pass_on_queue_turn(connection, replies);
  DDPRUN_ASSERT(!key_waits_.waiting(id) && !barrier_waits_.waiting(id) && !connection.queue_turn);
}

// If this client was woken for a queue's element and did not take it, wakes the next one, which
// would otherwise wait although the queue is not empty.
void StoreMachine::pass_on_queue_turn(Connection& connection, std::vector<StoreReply>& replies) {
  if (!connection.queue_turn) return;
  const std::string key = std::move(*connection.queue_turn);
  connection.queue_turn.reset();
  if (queues_.contains(key)) wake_queue_waiter(key, replies);
}

// One element ends one wait; a waiter that still lacks another key lets the next one have it.
void StoreMachine::wake_queue_waiter(const std::string& key, std::vector<StoreReply>& replies) {
  std::vector<int> done;
  while (done.empty()) {
    const std::size_t before = key_waits_.size();
    key_waits_.wake_first(key, done);
    if (key_waits_.size() == before) return;
  }
  DDPRUN_ASSERT(done.size() == 1 && queues_.contains(key));
  append_u8(reply_to(done.front(), replies), kStopWaiting);
  Connection& next = *connections_.at(done.front());
  DDPRUN_ASSERT(!next.queue_turn);
  next.queue_turn = key;
}

void StoreMachine::check_invariants() const {
  key_waits_.check_invariants();
  barrier_waits_.check_invariants();
  check_accounts();
  check_waits();
}

// What the table counts beside its values is elements of queues, and watches.
void StoreMachine::check_accounts() const {
  std::size_t entries = 0, bytes = 0, watches = 0;
  for (const auto& [key, queue] : queues_) {
    DDPRUN_ASSERT(!queue.empty());
    entries += queue.size();
    for (const std::string& each : queue) bytes += kStoreEntryBytes + key.size() + each.size();
  }
  for (const auto& [key, watchers] : watchers_) {
    DDPRUN_ASSERT(!watchers.empty());
    entries += watchers.size();
    bytes += watchers.size() * (kStoreEntryBytes + key.size());
    for (const int watcher : watchers) {
      const std::vector<std::string>& watched = connections_.at(watcher)->watched;
      DDPRUN_ASSERT(std::count(watched.begin(), watched.end(), key) ==
                    std::count(watchers.begin(), watchers.end(), watcher));
    }
    watches += watchers.size();
  }
  for (const auto& [id, connection] : connections_) watches -= connection->watched.size();
  DDPRUN_ASSERT(watches == 0);
  table_.check_accounts(entries, bytes);
}

// Each waiter is a connection that waits for one thing, and for nothing that is there: but for a
// queue of which every element is another's turn.
void StoreMachine::check_waits() const {
  std::size_t waiters = 0;
  std::map<std::string, std::size_t> turns;
  for (const auto& [id, connection] : connections_) {
    const int waits = key_waits_.waiting(id) + barrier_waits_.waiting(id);
    DDPRUN_ASSERT(waits <= 1 && (waits == 0 || !connection->queue_turn));
    waiters += static_cast<std::size_t>(waits);
    if (connection->queue_turn) ++turns[*connection->queue_turn];
  }
  DDPRUN_ASSERT(waiters == key_waits_.waiter_count() + barrier_waits_.waiter_count());
  DDPRUN_ASSERT(key_waits_.size() <= limits_.keys_max);
  for (const auto& [key, value] : table_) DDPRUN_ASSERT(!key_waits_.awaited(key));
  for (const auto& [key, queue] : queues_) {
    if (key_waits_.awaited(key)) DDPRUN_ASSERT(turns[key] >= queue.size());
  }
}

// What each operation of the store does. The table of requests and answers is in docs/protocol.md.
std::string& StoreMachine::Turn::reply() const { return reply_to(id, replies); }

Result<void> StoreMachine::answer(Turn& turn) {
  const StoreRequest& request = turn.request;
  if (request.op == StoreOp::kQueuePop && turn.connection.queue_turn == request.keys[0]) {
    turn.connection.queue_turn.reset();
  }
  // What the client requests now comes after whatever it waited for, see the head of
  // store_machine.h.
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

// Short requests can have long answers, so the answers to one feed() are bounded.
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
  if (appended) notify_watchers(kUpdated, key, before, turn.replies);
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
  if (erased) notify_watchers(kDeleted, key, *erased, turn.replies);
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
