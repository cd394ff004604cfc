#pragma once
// The key-value store of one round, as PyTorch's TCPStore clients know it: what each connection
// sends, and what it and others are answered.
//
// A connection speaks strictly in turn: a request, then its answer if it has one. Only WAIT and
// BARRIER may be answered later; any other request of a connection that still waits means that its
// client has given up (1.13 does so without notice), so the wait is forgotten and never answered. A
// wait counts each key once it has been there, even if it is deleted before the others come: that
// is what PyTorch does.
//
//            WAIT or BARRIER, while keys or peers are missing
//   speaks ──────────────────────────────────────────────────▶ waits
//     ▲ ▲        the last of them has come, or any                │ │
//     │ └─────── request: the wait is given up ───────────────────┘ │ woken by a queue's element
//     │      QUEUE_POP takes it; any other request                  ▼
//     └───── passes it on, as close() does ───────────────── has a queue's turn
//
// Pure: no socket, no clock. StoreClients put it on sockets; tests and fuzz targets call it
// directly.

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/error.h"
#include "common/store/store_table.h"
#include "common/store/store_wire.h"

namespace ddprun::store {

// Bytes that one connection must be sent. Several for one connection are sent in order.
struct StoreReply {
  int connection;
  std::string bytes;
};

class StoreMachine {
 public:
  explicit StoreMachine(StoreLimits limits = {});
  ~StoreMachine();
  StoreMachine(const StoreMachine&) = delete;
  StoreMachine& operator=(const StoreMachine&) = delete;

  // `connection` is the caller's number for it, free again after close().
  void open(int connection);

  // Carries out what `bytes` complete and appends all answers, also those to other connections. A
  // Failure gives the reason why this connection must be closed; the caller then calls close().
  Result<void> feed(int connection, std::string_view bytes, std::vector<StoreReply>& replies);

  void close(int connection, std::vector<StoreReply>& replies);

  std::size_t key_count() const { return table_.size(); }
  std::size_t connection_count() const { return connections_.size(); }

  // Aborts unless every invariant holds. Tests call it after each call.
  void check_invariants() const;

 private:
  struct Connection;
  using Queue = std::list<std::string>;

  // One request of one connection, while it is carried out.
  struct Turn {
    int id;
    Connection& connection;
    StoreRequest& request;
    std::vector<StoreReply>& replies;

    std::string& reply()
        const;  // Where the answer goes; valid until another connection is answered.
  };

  Result<void> answer(Turn& turn);
  Result<void> answer_text(Turn& turn, std::string_view text);
  Result<void> compare_set(Turn& turn);
  Result<void> add(Turn& turn);
  Result<void> append(Turn& turn);
  Result<void> multi_set(Turn& turn);
  Result<void> wait(Turn& turn);
  Result<void> barrier(Turn& turn);
  Result<void> watch(Turn& turn);
  Result<void> queue_push(Turn& turn);
  Result<void> queue_pop(Turn& turn);
  Result<void> queue_length(Turn& turn);
  Result<void> multi_get(Turn& turn);
  Result<void> list_keys(Turn& turn);
  Result<void> remove(Turn& turn);
  Result<void> check(Turn& turn);

  Result<void> store(const std::string& key, std::string value, std::vector<StoreReply>& replies);
  Result<std::int64_t> add_to(const std::string& key, std::int64_t delta,
                              std::vector<StoreReply>& replies);
  bool there(const std::string& key) const { return table_.find(key) || queues_.contains(key); }
  std::string_view value_of(const std::string& key) const;
  void give_up_wait(int id, Connection& connection, std::vector<StoreReply>& replies);
  void pass_on_queue_turn(Connection& connection, std::vector<StoreReply>& replies);
  void wake_queue_waiter(const std::string& key, std::vector<StoreReply>& replies);
  void notify_watchers(int change, const std::string& key, std::string_view before,
                     std::vector<StoreReply>& replies);
  void check_accounts() const;
  void check_waits() const;

  const StoreLimits limits_;
  StoreTable table_;
  std::unordered_map<std::string, Queue> queues_;  // None is empty.
  StoreWaits key_waits_;
  StoreWaits barrier_waits_;
  std::unordered_map<std::string, std::vector<int>> watchers_;  // None is empty.
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
};

// What the StoreMachine remembers of one connection; for store_machine.cc only.
struct StoreMachine::Connection {
  explicit Connection(const StoreLimits& limits) : reader(limits) {}

  StoreReader reader;
  std::vector<std::string> watched;
  // The queue that ended this connection's wait with a new element, until the connection has taken
  // the element or gone on.
  std::optional<std::string> queue_turn;
  std::size_t reply_bytes = 0;  // Answered to the current feed().
};

// The kinds of change that a watching client receives (1.13's numbers).
enum StoreChange { kUpdated = 0, kCreated = 1, kDeleted = 2, kWatchBegun = 3 };

// The text of the answer to `connection` under construction at the end of `replies`.
std::string& reply_to(int connection, std::vector<StoreReply>& replies);

}  // namespace ddprun::store
