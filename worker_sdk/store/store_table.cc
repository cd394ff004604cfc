#include "worker_sdk/store/store_table.h"

#include <algorithm>
#include <charconv>

#include "worker_sdk/store/store_wire.h"

namespace ddprun::worker_sdk {

bool StoreTable::set(std::string_view key, std::string_view value) {
  if (key.size() > wire::kKeyBytesMax || value.size() > wire::kValueBytesMax) return false;
  const auto found = values_.find(key);
  if (found != values_.end()) {
    found->second = value;
    return true;
  }
  if (values_.size() >= wire::kKeysMax) return false;
  values_.emplace(key, value);
  return true;
}

bool StoreTable::append(std::string_view key, std::string_view value) {
  const std::string* present = find(key);
  return set(key, (present ? *present : std::string()) + std::string(value));
}

std::optional<std::int64_t> StoreTable::add(std::string_view key, std::int64_t delta) {
  std::int64_t value = 0;
  if (const std::string* present = find(key)) {
    const char* end = present->data() + present->size();
    const auto parsed = std::from_chars(present->data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  }
  if (__builtin_add_overflow(value, delta, &value)) return std::nullopt;
  if (!set(key, std::to_string(value))) return std::nullopt;
  return value;
}

std::optional<std::string> StoreTable::compare_set(std::string_view key, std::string_view expected,
                                                   std::string_view desired) {
  const std::string* present = find(key);
  if (!present && !expected.empty()) return std::string(expected);
  if (present && *present != expected) return *present;
  if (!set(key, desired)) return std::nullopt;
  return std::string(desired);
}

const std::string* StoreTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool StoreTable::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return find(key); });
}

bool StoreTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

}  // namespace ddprun::worker_sdk
