#pragma once
// The values of a store, with the meaning that PyTorch gives to them, within the limits of what a
// store may hold. Pure. Used by the StoreMachine, and by the SDK's stores without connections:
// local_store (in memory) and file_store (replayed from a file).

#include <cstdint>
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

  // All fail where a limit would be exceeded, and change nothing then.

  // Returns the value that was there before.
  Result<std::optional<std::string>> set(std::string_view key, std::string value);

  // `key` must be there. In place, for a long value may be appended to by short requests.
  Result<void> append(std::string_view key, std::string_view more);

  // What the value of `key` is with `delta` added: decimal text as strtoll reads it, 0 if there is
  // none. Fails if it is no number, or beyond 64 bits. Stores nothing.
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

}  // namespace ddprun::store
