#pragma once
// Memory as C++ promises it and no more: a location is a list of the values it was given, and a
// load may return any that its thread is not known to have left behind. What a thread knows is its
// view; a release store attaches its thread's view to the value, and an acquire load takes it over.
// Sequentially consistent accesses of a location also respect the order in which they were carried
// out. Accesses that are not atomic must be ordered by views, else they are a race, which is
// reported with both sides.
//
// Not in it: stores that are carried out before earlier loads of their thread (load buffering).
// Where there is no race, they cannot be observed but through relaxed atomics. A store's place
// among those of its location is the order in which they were carried out.
//
// Knows nothing of threads and schedules; explorer.h runs those. Pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ddprun::orders {

constexpr int kThreadsMax = 4;

// Of the compiler's calls: __ATOMIC_RELAXED and so on.
using Order = int;
bool acquires(Order order);
bool releases(Order order);
const char* name_of(Order order);

struct Access {
  enum Kind {
    kLoad,
    kStore,
    kAdd,
    kSubtract,
    kOr,
    kAnd,
    kExchange,
    kCompareExchange,
    kWait,
    kWake
  };
  Kind kind = kLoad;
  std::uintptr_t address = 0;
  unsigned bytes = 0;
  Order order = 0;
  std::uint64_t value = 0;     // To be stored, or added and so on; of a kWait: what was seen.
  std::uint64_t expected = 0;  // Of a kCompareExchange.

  bool changes() const { return kind != kLoad && kind != kWait && kind != kWake; }
};

class WeakMemory {
 public:
  void clear();

  // How many values `thread` may find; 0 is the newest. 1 for whatever is not a load.
  std::size_t choices(int thread, const Access& access);
  // Carries it out. What was found there before.
  std::uint64_t perform(int thread, const Access& access, std::size_t choice);
  void fence(int thread, Order order);

  // Accesses that are not atomic. Nothing, or a sentence about the race.
  std::string read(int thread, std::uintptr_t address, std::size_t bytes);
  std::string write(int thread, std::uintptr_t address, std::size_t bytes);

 private:
  using Clock = std::array<std::uint32_t, kThreadsMax>;
  struct View {
    std::vector<std::uint32_t> seen;  // By location: the oldest value that may still be found.
    Clock clock{};
    std::uint32_t of(std::size_t location) const {
      return location < seen.size() ? seen[location] : 0;
    }
    void see(std::size_t location, std::uint32_t message);
    void join(const View& other);
  };
  struct Message {
    std::uint64_t value = 0;
    View view = {};
  };
  struct Location {
    std::size_t number = 0;
    std::vector<Message> messages;
    std::uint32_t in_total_order = 0;  // The newest stored by a sequentially consistent access.
    std::uint32_t woken = 0;           // What wakers have seen: the kernel shows no less.
  };
  struct Thread {
    View now;       // What it knows.
    View found;     // What it would know after an acquire fence.
    View released;  // What its relaxed stores hand on: its view at its latest release fence.
  };
  struct Place {  // Four bytes.
    int writer = -1;
    std::uint32_t written = 0;
    Clock read{};
  };

  Location& location(const Access& access);
  std::uint32_t oldest(int thread, const Access& access, const Location& location) const;
  void take(Thread& thread, const Message& message, Order order);
  void put(Thread& thread, Location& location, const Access& access, std::uint64_t value,
           const View* continued);
  std::string touch(int thread, std::uintptr_t address, std::size_t bytes, bool writes);

  std::array<Thread, kThreadsMax> threads_;
  std::unordered_map<std::uintptr_t, Location> locations_;
  std::unordered_map<std::uintptr_t, Place> places_;
};

}  // namespace ddprun::orders
