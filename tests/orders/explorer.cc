#include "tests/orders/explorer.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <sstream>

#include "common/assert.h"
#include "tests/orders/fibers.h"
#include "tests/orders/schedule.h"

namespace ddprun::orders {
namespace {

constexpr std::size_t kStepsMax = 5000;  // Of one execution: more is a loop.

class Execution {
 public:
  Execution(const Program& program, Schedule& schedule);
  void run();
  const std::string& failure() const { return failure_; }

  std::uint64_t carry_out(const Access& access);
  void carry_out_fence(Order order) { memory_.fence(fibers_.current(), order); }
  void note_plain(std::uintptr_t address, std::size_t bytes, bool writes);
  void fail(const std::string& why);
  void watch(std::uintptr_t begin, std::size_t bytes) {
    watched_.push_back({begin, begin + bytes});
  }
  bool is_watched(std::uintptr_t address) const;
  bool is_thread() const { return fibers_.current() >= 0 && !within_; }

  // The model's own accesses to memory belong to no thread.
  struct Within {
    explicit Within(Execution& e) : execution(e), before(e.within_) { e.within_ = true; }
    ~Within() { execution.within_ = before; }
    Within(const Within&) = delete;
    Execution& execution;
    const bool before;
  };

 private:
  enum class State { kReady, kSleeps, kEnded };
  struct Thread {
    State state = State::kReady;
    Access next = {};
    std::uintptr_t sleeps_on = 0;
    bool has_timed_out = false;
  };
  struct Region {
    std::uintptr_t begin, end;
  };
  struct Done {
    int thread;
    Access access;
    std::uint64_t found;
    std::size_t choice;
  };

  void live(int thread);
  void hand_over();
  template <class Which>
  Threads wake(Which which);
  std::string story() const;
  std::string place(std::uintptr_t address) const;
  Thread& mine() { return threads_[static_cast<std::size_t>(fibers_.current())]; }

  const Program& program_;
  Schedule& schedule_;
  Fibers fibers_;
  std::vector<std::function<void()>> bodies_;
  WeakMemory memory_;
  std::vector<Region> watched_;
  std::vector<Thread> threads_;
  std::vector<Done> done_;
  std::string failure_;
  bool within_ = false;
};

Execution* execution = nullptr;

Execution::Execution(const Program& program, Schedule& schedule)
    : program_(program), schedule_(schedule) {
  DDPRUN_ASSERT(!program.threads.empty() && program.threads.size() <= kThreadsMax);
  for (int t = 0; t < static_cast<int>(program.threads.size()); ++t) {
    bodies_.push_back([this, t] { live(t); });
  }
}

// All threads stand before their first access, and the schedule chooses the thread that goes on.
void Execution::run() {
  memory_.clear();
  watched_.clear();
  done_.clear();
  threads_.assign(program_.threads.size(), {});
  within_ = false;
  schedule_.begin();
  program_.before();
  fibers_.run(bodies_, 0);
  if (failure_.empty()) program_.after();
}

void Execution::live(int thread) {
  if (thread == 0) carry_out({});  // The first thread has to give the others their chance.
  try {
    program_.threads[static_cast<std::size_t>(thread)]();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  const Within here(*this);
  mine().state = State::kEnded;
  hand_over();
}

// Returns when the schedule has chosen this thread again.
void Execution::hand_over() {
  Threads ready = 0;
  std::array<Access, kThreadsMax> next{};
  std::string asleep;
  for (std::size_t t = 0; t < threads_.size(); ++t) {
    next[t] = threads_[t].next;
    if (threads_[t].state == State::kReady) ready |= one(static_cast<int>(t));
    if (threads_[t].state != State::kSleeps) continue;
    asleep += " thread " + std::to_string(t) + " sleeps on " + place(threads_[t].sleeps_on) + ";";
  }
  if (ready == 0 && asleep.empty()) return fibers_.leave();
  if (ready == 0) {
    if (!program_.times_out) fail("nobody goes on:" + asleep);
    ready = wake([](const Thread&) { return true; });
    schedule_.follow_all(ready);
  }
  const int chosen = schedule_.choose(ready, next);
  if (chosen == fibers_.current()) return;
  const bool here = within_;
  within_ = false;
  fibers_.go_on(chosen);
  within_ = here;
}

std::uint64_t Execution::carry_out(const Access& access) {
  const Within here(*this);
  const int me = fibers_.current();
  mine().next = access;
  hand_over();
  if (access.address == 0) return 0;
  if (done_.size() == kStepsMax) fail("it does not end");
  const std::size_t values = memory_.choices(me, access);
  const bool may_time_out =
      access.kind == Access::kWait && program_.times_out && !mine().has_timed_out;
  std::size_t choice = schedule_.choose_value(may_time_out ? values + 1 : values);
  const bool times_out = choice == values;
  if (times_out) mine().has_timed_out = true, choice = 0;
  const std::uint64_t found = memory_.perform(me, access, choice);
  done_.push_back({me, access, found, choice});
  if (access.kind == Access::kWake) {
    schedule_.follow(wake([&](const Thread& t) { return t.sleeps_on == access.address; }));
  }
  if (access.kind == Access::kWait && found == access.value && !times_out) {
    mine().state = State::kSleeps;
    mine().sleeps_on = access.address;
    mine().next = {};
    hand_over();
  }
  return found;
}

template <class Which>
Threads Execution::wake(Which which) {
  Threads woken = 0;
  for (std::size_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].state != State::kSleeps || !which(threads_[t])) continue;
    threads_[t].state = State::kReady;
    woken |= one(static_cast<int>(t));
  }
  return woken;
}

bool Execution::is_watched(std::uintptr_t address) const {
  for (const Region& region : watched_) {
    if (address >= region.begin && address < region.end) return true;
  }
  return false;
}

void Execution::note_plain(std::uintptr_t address, std::size_t bytes, bool writes) {
  const Within here(*this);
  const int me = fibers_.current();
  const std::string race =
      writes ? memory_.write(me, address, bytes) : memory_.read(me, address, bytes);
  if (!race.empty()) fail(race + ", at " + place(address));
}

// Whatever the threads have on their stacks stays there: a test that has failed may leak.
void Execution::fail(const std::string& why) {
  const Within here(*this);
  failure_ = why + story();
  if (fibers_.current() >= 0) fibers_.leave();
}

std::string Execution::place(std::uintptr_t address) const {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (address < watched_[i].begin || address >= watched_[i].end) continue;
    return std::string(1, static_cast<char>('A' + i)) + "+" +
           std::to_string(address - watched_[i].begin);
  }
  return "?";
}

std::string Execution::story() const {
  constexpr const char* kNames[] = {"load", "store", "add",      "subtract",
                                    "or",   "and",   "exchange", "compare_exchange",
                                    "wait", "wake"};
  constexpr std::size_t kShown = 80;  // Steps.
  std::ostringstream text;
  if (done_.size() > kShown) text << "\n  ... " << done_.size() - kShown << " steps before";
  for (std::size_t i = done_.size() - std::min(done_.size(), kShown); i < done_.size(); ++i) {
    const Done& step = done_[i];
    text << "\n  thread " << step.thread << ": " << kNames[step.access.kind] << " at "
         << place(step.access.address);
    if (step.access.kind < Access::kWait) text << ", " << name_of(step.access.order);
    if (step.access.kind != Access::kLoad) text << ", value " << step.access.value;
    text << ", found " << step.found;
    if (step.choice > 0) text << ", " << step.choice << " behind the newest";
  }
  return text.str();
}

}  // namespace

std::string Outcome::text() const {
  if (!failure.empty()) return failure;
  if (!all) return "all well in " + std::to_string(executions) + " executions of more";
  return "all well in all " + std::to_string(executions) + " executions";
}

Outcome explore(const Program& program, Bounds bounds) {
  DDPRUN_ASSERT(execution == nullptr);
  Schedule schedule(bounds.seed);
  Outcome outcome;
  Execution running(program, schedule);
  execution = &running;
  do {
    running.run();
    ++outcome.executions;
    outcome.failure = running.failure();
    outcome.all = !schedule.advance();
  } while (outcome.failure.empty() && !outcome.all && outcome.executions < bounds.executions);
  execution = nullptr;
  return outcome;
}

void watch(const void* memory, std::size_t bytes) {
  execution->watch(reinterpret_cast<std::uintptr_t>(memory), bytes);
}

void fail(const std::string& why) { execution->fail(why); }

void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

bool is_watched(const void* memory) {
  if (!execution || !execution->is_thread()) return false;
  const Execution::Within here(*execution);
  return execution->is_watched(reinterpret_cast<std::uintptr_t>(memory));
}

std::uint64_t carry_out(const Access& access) { return execution->carry_out(access); }

void carry_out_fence(Order order) {
  if (execution && execution->is_thread()) execution->carry_out_fence(order);
}

void note_plain(const void* memory, std::size_t bytes, bool writes) {
  if (is_watched(memory)) {
    execution->note_plain(reinterpret_cast<std::uintptr_t>(memory), bytes, writes);
  }
}

}  // namespace ddprun::orders
