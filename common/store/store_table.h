#pragma once
// The values of a store, with the meaning that PyTorch gives to them, within the limits of what a
// store may hold. Pure. Used by the StoreMachine, and by the SDK's stores without connections:
// local_store (in memory) and file_store (replayed from a file).

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/error.h"
#include "common/store/store_wire.h"

namespace ddprun::store {

// About what an entry of an unordered_map of strings takes beside its text.
constexpr std::size_t kStoreEntryBytes = 100;

class StoreTable {
 public:
  explicit StoreTable(const StoreLimits& limits) : limits_(limits) {}

  const std::string* find(std::string_view key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  std::size_t size() const { return values_.size(); }
  auto begin() const { return values_.begin(); }  // Pairs of key and value, in any order.
  auto end() const { return values_.end(); }

  // All fail if a limit would be exceeded, and change nothing then.

  // Returns the value that was there before.
  Result<std::optional<std::string>> set(std::string_view key, std::string value);

  // `key` must be there. In place, for a long value may be appended to by short requests.
  Result<void> append(std::string_view key, std::string_view more);

  // What the value of `key` is with `delta` added: decimal text as strtoll reads it, 0 if there is
  // none. Fails if it is not a number, or beyond 64 bits. Stores nothing.
  Result<std::int64_t> sum(std::string_view key, std::int64_t delta) const;

  // Returns the value that was there.
  std::optional<std::string> erase(std::string_view key);

  // Room for what a store holds beside its values, such as queues. They count as keys.
  Result<void> reserve(std::size_t keys, std::size_t bytes);
  void release(std::size_t keys, std::size_t bytes);

  // Aborts unless what is counted is what the values take, and `keys` and `bytes` beside them.
  void check_accounts(std::size_t keys, std::size_t bytes) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

  const StoreLimits limits_;
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
  std::size_t keys_ = 0;   // Of values_ and of what was reserved.
  std::size_t bytes_ = 0;  // What those hold, about.
};

// Which of a store's clients waits for which key. Waking one waiter costs the same however many
// wait and however many keys each of them waits for. Pure; used by the StoreMachine.
class StoreWaits {
 public:
  // `connection`, which must not be waiting, waits until each of `keys` (at least one) has been
  // woken.
  void begin(int connection, const std::vector<std::string>& keys);

  bool waiting(int connection) const { return waiters_.contains(connection); }
  void cancel(int connection);  // Forgets what the connection waits for, if anything.

  // Wakes all clients that wait for `key`, or the one that has waited longest; appends to `done`
  // those that now wait for nothing else.
  void wake_all(const std::string& key, std::vector<int>& done);
  void wake_first(const std::string& key, std::vector<int>& done);

  std::size_t size() const {
    return places_;
  }  // Pairs of a connection and a key it still waits for.
  std::size_t waiter_count() const { return waiters_.size(); }
  bool awaited(const std::string& key) const { return lines_.contains(key); }

  // Aborts unless lines and waiters name each other, none is empty and size() counts them.
  void check_invariants() const;

 private:
  struct Place {
    int connection;
    std::size_t index;  // Into the waiter's `links`.
  };
  using Line = std::list<Place>;  // In the order of arrival.
  using Node =
      std::pair<const std::string, Line>;  // Of lines_; does not move when others come and go.
  struct Link {
    Node* node;  // Null once woken.
    Line::iterator place;
  };
  struct Waiter {
    std::vector<Link> links;
    std::size_t missing = 0;
  };

  void wake_front(Node& node, std::vector<int>& done);

  std::unordered_map<std::string, Line> lines_;  // None is empty.
  std::unordered_map<int, Waiter> waiters_;
  std::size_t places_ = 0;
};

}  // namespace ddprun::store
