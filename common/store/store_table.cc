#include "common/store/store_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/assert.h"
#include "common/store/store_wire.h"

namespace ddprun::store {
namespace {

// Reads as strtoll does, for that is what PyTorch reads counters with: spaces, a sign, digits, and
// no matter what follows.
std::optional<std::int64_t> parse_counter(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace

const std::string* StoreTable::find(std::string_view key) const {
  const auto entry = values_.find(key);
  return entry == values_.end() ? nullptr : &entry->second;
}

bool StoreTable::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return find(key); });
}

Result<std::optional<std::string>> StoreTable::set(std::string_view key, std::string value) {
  if (key.size() > limits_.key_bytes_max || value.size() > limits_.value_bytes_max) {
    return bad_message("storing a key of " + std::to_string(key.size()) + " and a value of " +
                       std::to_string(value.size()) + " bytes");
  }
  const auto entry = values_.find(key);
  const bool fresh = entry == values_.end();
  const Result<void> room =
      fresh ? reserve(1, kStoreEntryBytes + key.size() + value.size()) : reserve(0, value.size());
  if (!room) return room.error();
  if (fresh) {
    values_.emplace(key, std::move(value));
    return std::optional<std::string>();
  }
  release(0, entry->second.size());
  return std::optional<std::string>(std::exchange(entry->second, std::move(value)));
}

Result<void> StoreTable::append(std::string_view key, std::string_view more) {
  const auto entry = values_.find(key);
  DDPRUN_ASSERT(entry != values_.end());
  std::string& value = entry->second;
  if (value.size() + more.size() > limits_.value_bytes_max) {
    return bad_message("appending to a store value of " + std::to_string(value.size()) + " bytes");
  }
  Result<void> room = reserve(0, more.size());
  if (room) value += more;
  return room;
}

Result<std::int64_t> StoreTable::sum(std::string_view key, std::int64_t delta) const {
  const std::string* const value = find(key);
  const auto before = value ? parse_counter(*value) : std::optional<std::int64_t>(0);
  if (!before)
    return bad_message("adding to store key '" + std::string(key) +
                       "', which does not hold a number");
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*before, delta, &sum)) {
    return bad_message("adding " + std::to_string(delta) + " to store key '" + std::string(key) +
                       "' overflows");
  }
  return sum;
}

std::optional<std::string> StoreTable::erase(std::string_view key) {
  const auto entry = values_.find(key);
  if (entry == values_.end()) return std::nullopt;
  release(1, kStoreEntryBytes + key.size() + entry->second.size());
  std::optional<std::string> value(std::move(entry->second));
  values_.erase(entry);
  return value;
}

Result<void> StoreTable::reserve(std::size_t keys, std::size_t bytes) {
  if (keys_ + keys > limits_.keys_max) {
    return bad_message("storing more than " + std::to_string(limits_.keys_max) + " keys");
  }
  if (bytes_ + bytes > limits_.store_bytes_max) {
    return bad_message("storing more than " + std::to_string(limits_.store_bytes_max) + " bytes");
  }
  keys_ += keys;
  bytes_ += bytes;
  return {};
}

void StoreTable::release(std::size_t keys, std::size_t bytes) {
  DDPRUN_ASSERT(keys <= keys_ && bytes <= bytes_);
  keys_ -= keys;
  bytes_ -= bytes;
}

void StoreTable::check_accounts(std::size_t keys, std::size_t bytes) const {
  keys += values_.size();
  for (const auto& [key, value] : values_) bytes += kStoreEntryBytes + key.size() + value.size();
  DDPRUN_ASSERT(keys == keys_ && bytes == bytes_);
  DDPRUN_ASSERT(keys_ <= limits_.keys_max && bytes_ <= limits_.store_bytes_max);
}

void StoreWaits::begin(int connection, const std::vector<std::string>& keys) {
  DDPRUN_ASSERT(!keys.empty());
  const auto [entry, fresh] = waiters_.try_emplace(connection);
  DDPRUN_ASSERT(fresh);
  Waiter& waiter = entry->second;
  waiter.missing = keys.size();
  waiter.links.reserve(keys.size());
  for (const std::string& key : keys) {
    Node& node = *lines_.try_emplace(key).first;
    const auto place = node.second.insert(node.second.end(), {connection, waiter.links.size()});
    waiter.links.push_back({&node, place});
  }
  places_ += keys.size();
}

void StoreWaits::cancel(int connection) {
  const auto entry = waiters_.find(connection);
  if (entry == waiters_.end()) return;
  for (const Link& link : entry->second.links) {
    if (!link.node) continue;
    link.node->second.erase(link.place);
    if (link.node->second.empty()) lines_.erase(lines_.find(link.node->first));
  }
  DDPRUN_ASSERT(entry->second.missing > 0 && entry->second.missing <= places_);
  places_ -= entry->second.missing;
  waiters_.erase(entry);
}

void StoreWaits::wake_front(Node& node, std::vector<int>& done) {
  DDPRUN_ASSERT(!node.second.empty() && places_ > 0);
  const Place place = node.second.front();
  node.second.pop_front();
  --places_;
  const auto entry = waiters_.find(place.connection);
  DDPRUN_ASSERT(entry != waiters_.end());
  entry->second.links[place.index].node = nullptr;
  if (--entry->second.missing > 0) return;
  waiters_.erase(entry);
  done.push_back(place.connection);
}

void StoreWaits::wake_all(const std::string& key, std::vector<int>& done) {
  const auto line = lines_.find(key);
  if (line == lines_.end()) return;
  while (!line->second.empty()) wake_front(*line, done);
  lines_.erase(line);
}

void StoreWaits::wake_first(const std::string& key, std::vector<int>& done) {
  const auto line = lines_.find(key);
  if (line == lines_.end()) return;
  wake_front(*line, done);
  if (line->second.empty()) lines_.erase(line);
}

void StoreWaits::check_invariants() const {
  std::size_t places = 0, missing = 0;
  for (const auto& [key, line] : lines_) {
    DDPRUN_ASSERT(!line.empty());
    places += line.size();
    for (const Place& place : line) {
      const Link& link = waiters_.at(place.connection).links.at(place.index);
      DDPRUN_ASSERT(link.node && link.node->first == key && &*link.place == &place);
    }
  }
  for (const auto& [connection, waiter] : waiters_) {
    DDPRUN_ASSERT(waiter.missing > 0);
    missing += waiter.missing;
    const auto linked = std::count_if(waiter.links.begin(), waiter.links.end(),
                                      [](const Link& link) { return link.node != nullptr; });
    DDPRUN_ASSERT(static_cast<std::size_t>(linked) == waiter.missing);
  }
  DDPRUN_ASSERT(places == places_ && missing == places_);
}

}  // namespace ddprun::store
