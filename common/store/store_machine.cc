#include "common/store/store_machine.h"

#include <algorithm>
#include <map>

#include "common/assert.h"
#include "common/store/store_connection.h"

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

// Sets a value, wakes whoever waits for the key and tells whoever watches it.
Result<void> StoreMachine::store(const std::string& key, std::string value,
                                 std::vector<StoreReply>& replies) {
  const Result<std::optional<std::string>> before = table_.set(key, std::move(value));
  if (!before) return before.error();
  if (*before) {
    tell_watchers(kUpdated, key, **before, replies);
  } else {
    tell_watchers(kCreated, key, {}, replies);
  }
  std::vector<int> done;
  key_waits_.wake_all(key, done);
  for (const int waiter : done) append_u8(reply_to(waiter, replies), kStopWaiting);
  return {};
}

// To be called after the change.
void StoreMachine::tell_watchers(int change, const std::string& key, std::string_view before,
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

// Who was woken for a queue's element and did not take it lets the next one have it, else that one
// would wait beside a queue that is not empty.
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

}  // namespace ddprun::store
