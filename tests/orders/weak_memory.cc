#include "tests/orders/weak_memory.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"

namespace ddprun::orders {
namespace {

std::uint64_t cut(std::uint64_t value, unsigned bytes) {
  return bytes == 8 ? value : value & ((std::uint64_t{1} << 8 * bytes) - 1);
}

// The value that is left there.
std::uint64_t changed(const Access& access, std::uint64_t before) {
  switch (access.kind) {
    case Access::kAdd: return cut(before + access.value, access.bytes);
    case Access::kSubtract: return cut(before - access.value, access.bytes);
    case Access::kOr: return before | access.value;
    case Access::kAnd: return before & access.value;
    default: return access.value;
  }
}

}  // namespace

bool acquires(Order order) { return order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE; }
bool releases(Order order) { return order >= __ATOMIC_RELEASE; }

const char* name_of(Order order) {
  constexpr const char* kNames[] = {"relaxed", "consume", "acquire",
                                    "release", "acq_rel", "seq_cst"};
  return kNames[order];
}

void WeakMemory::View::see(std::size_t location, std::uint32_t message) {
  if (location >= seen.size()) seen.resize(location + 1);
  seen[location] = std::max(seen[location], message);
}

void WeakMemory::View::join(const View& other) {
  for (std::size_t i = 0; i < other.seen.size(); ++i) see(i, other.seen[i]);
  for (std::size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], other.clock[t]);
}

void WeakMemory::clear() {
  threads_ = {};
  for (std::size_t t = 0; t < threads_.size(); ++t) threads_[t].now.clock[t] = 1;
  locations_.clear();
  places_.clear();
}

// The first message is what was there before anything ran, which all threads have seen.
WeakMemory::Location& WeakMemory::location(const Access& access) {
  auto [at, is_new] = locations_.try_emplace(access.address);
  if (is_new) {
    at->second.number = locations_.size() - 1;
    at->second.messages.emplace_back();
    std::memcpy(&at->second.messages.front().value, reinterpret_cast<const void*>(access.address),
                access.bytes);
  }
  return at->second;
}

std::uint32_t WeakMemory::oldest(int thread, const Access& access, const Location& location) const {
  std::uint32_t first = threads_[static_cast<std::size_t>(thread)].now.of(location.number);
  if (access.order == __ATOMIC_SEQ_CST) first = std::max(first, location.in_total_order);
  if (access.kind == Access::kWait) first = std::max(first, location.woken);
  return first;
}

std::size_t WeakMemory::choices(int thread, const Access& access) {
  if (access.kind != Access::kLoad && access.kind != Access::kWait) return 1;
  const Location& there = location(access);
  return there.messages.size() - oldest(thread, access, there);
}

void WeakMemory::take(Thread& thread, const Message& message, Order order) {
  thread.found.join(message.view);
  if (acquires(order)) thread.now.join(message.view);
}

void WeakMemory::put(Thread& thread, Location& location, const Access& access, std::uint64_t value,
                     const View* continued) {
  const auto number = static_cast<std::uint32_t>(location.messages.size());
  thread.now.see(location.number, number);
  thread.found.see(location.number, number);
  Message message{value, releases(access.order) ? thread.now : thread.released};
  message.view.see(location.number, number);
  if (continued) message.view.join(*continued);
  location.messages.push_back(std::move(message));
  if (access.order == __ATOMIC_SEQ_CST) location.in_total_order = number;
  std::memcpy(reinterpret_cast<void*>(access.address), &value, access.bytes);
}

std::uint64_t WeakMemory::perform(int t, const Access& access, std::size_t choice) {
  DDPRUN_ASSERT(choice < choices(t, access));
  Thread& thread = threads_[static_cast<std::size_t>(t)];
  Location& there = location(access);
  const auto newest = static_cast<std::uint32_t>(there.messages.size() - 1);
  const std::uint32_t number = newest - static_cast<std::uint32_t>(choice);
  const std::uint64_t before = there.messages[number].value;
  if (access.kind == Access::kWake) {
    there.woken = std::max(there.woken, thread.now.of(there.number));
  } else if (access.kind == Access::kLoad || access.kind == Access::kWait) {
    thread.now.see(there.number, number);
    take(thread, there.messages[number], access.order);
  } else if (access.kind == Access::kStore) {
    put(thread, there, access, access.value, nullptr);
  } else if (access.kind == Access::kCompareExchange && before != access.expected) {
    thread.now.see(there.number, number);
    take(thread, there.messages[number], access.order);
  } else {  // One access, so nothing comes between; and it continues what others have released.
    const View continued = there.messages[number].view;
    take(thread, there.messages[number], access.order);
    put(thread, there, access, changed(access, before), &continued);
  }
  ++thread.now.clock[static_cast<std::size_t>(t)];
  return before;
}

void WeakMemory::fence(int t, Order order) {
  DDPRUN_ASSERT(order != __ATOMIC_SEQ_CST);  // Nothing here uses one.
  Thread& thread = threads_[static_cast<std::size_t>(t)];
  if (acquires(order)) thread.now.join(thread.found);
  if (releases(order)) thread.released = thread.now;
  ++thread.now.clock[static_cast<std::size_t>(t)];
}

std::string WeakMemory::touch(int t, std::uintptr_t address, std::size_t bytes, bool writes) {
  const auto me = static_cast<std::size_t>(t);
  const Clock& known = threads_[me].now.clock;
  const auto race = [&](std::size_t other, const char* what) {
    return "thread " + std::to_string(t) + (writes ? " writes" : " reads") + " what thread " +
           std::to_string(other) + what;
  };
  for (std::uintptr_t at = address / 4; at <= (address + bytes - 1) / 4; ++at) {
    Place& place = places_[at];
    if (place.writer >= 0 && place.writer != t) {
      const auto writer = static_cast<std::size_t>(place.writer);
      if (known[writer] < place.written) return race(writer, " has written, out of order");
    }
    for (std::size_t other = 0; writes && other < known.size(); ++other) {
      if (other != me && known[other] < place.read[other]) return race(other, " may still read");
    }
    if (writes) place.writer = t, place.written = known[me];
    if (!writes) place.read[me] = known[me];
  }
  return "";
}

std::string WeakMemory::read(int thread, std::uintptr_t address, std::size_t bytes) {
  return bytes == 0 ? "" : touch(thread, address, bytes, false);
}

std::string WeakMemory::write(int thread, std::uintptr_t address, std::size_t bytes) {
  return bytes == 0 ? "" : touch(thread, address, bytes, true);
}

}  // namespace ddprun::orders
