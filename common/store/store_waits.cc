#include "common/store/store_waits.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::store {

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
