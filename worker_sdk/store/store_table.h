#pragma once
// The keys and values of a store, with the meaning that PyTorch gives to each operation, and
// limits. Pure. Used by store_host (over TCP), local_store (in memory) and file_store (replayed
// from a file).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddprun::worker_sdk {

class StoreTable {
 public:
  // All return false or nothing if a limit of store_wire.h would be exceeded.
  bool set(std::string_view key, std::string_view value);
  bool append(std::string_view key, std::string_view value);
  // Nothing also if the present value is not a decimal number.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  // What PyTorch's server answers: the value now there, or `expected` if there is none and one was
  // expected.
  std::optional<std::string> compare_set(std::string_view key, std::string_view expected,
                                         std::string_view desired);

  const std::string* find(std::string_view key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  bool erase(std::string_view key);
  std::size_t size() const { return values_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
};

}  // namespace ddprun::worker_sdk
