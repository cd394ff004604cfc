// The machine of the other tests in this folder, on programs with outcomes that are known from the
// C++ standard: it shows what is allowed, and nothing else.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <set>

#include "tests/orders/explorer.h"

namespace ddprun::orders {
namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

struct Shared {
  std::atomic<int> x, y, z;
  int plain;
};

Shared shared;
int found[4];

Program program(std::vector<std::function<void()>> threads, std::set<std::string>* outcomes) {
  return {.before =
              [] {
                shared.x = shared.y = shared.z = shared.plain = 0;
                for (int& f : found) f = -1;
                watch(&shared, sizeof shared);
              },
          .threads = std::move(threads),
          .after =
              [outcomes] {
                std::string all;
                for (const int f : found) {
                  if (f >= 0) all += std::to_string(f);
                }
                outcomes->insert(all.empty() ? "-" : all);
              }};
}

// What the threads have found, in all executions; or why one failed, in short.
std::string outcomes_of(std::vector<std::function<void()>> threads) {
  std::set<std::string> outcomes;
  const Outcome outcome = explore(program(std::move(threads), &outcomes));
  if (!outcome.failure.empty()) return outcome.failure.substr(0, outcome.failure.find('\n'));
  CHECK(outcome.all);
  std::string text;
  for (const std::string& one : outcomes) text += (text.empty() ? "" : " ") + one;
  return text;
}

std::string message_passing(std::memory_order store, std::memory_order load) {
  return outcomes_of({[=] {
                        shared.x.store(1, memory_order_relaxed);
                        shared.y.store(1, store);
                      },
                      [=] {
                        found[0] = shared.y.load(load);
                        found[1] = shared.x.load(memory_order_relaxed);
                      }});
}

TEST_CASE("Litmus: a message is there when its flag is, if both sides say so") {
  CHECK(message_passing(memory_order_release, memory_order_acquire) == "00 01 11");
  CHECK(message_passing(memory_order_relaxed, memory_order_acquire) == "00 01 10 11");
  CHECK(message_passing(memory_order_release, memory_order_relaxed) == "00 01 10 11");
}

std::string store_buffering(std::memory_order order) {
  return outcomes_of({[=] {
                        shared.x.store(1, order);
                        found[0] = shared.y.load(order);
                      },
                      [=] {
                        shared.y.store(1, order);
                        found[1] = shared.x.load(order);
                      }});
}

TEST_CASE("Litmus: two that store and look at each other may both miss it, unless all is seq_cst") {
  CHECK(store_buffering(memory_order_seq_cst) == "01 10 11");
  CHECK(store_buffering(memory_order_relaxed) == "00 01 10 11");
}

std::string two_readers(std::memory_order store, std::memory_order load) {
  return outcomes_of({[=] { shared.x.store(1, store); }, [=] { shared.y.store(1, store); },
                      [=] {
                        found[0] = shared.x.load(load);
                        found[1] = shared.y.load(load);
                      },
                      [=] {
                        found[2] = shared.y.load(load);
                        found[3] = shared.x.load(load);
                      }});
}

TEST_CASE("Litmus: two readers may see two writers in different orders, unless all is seq_cst") {
  CHECK_THAT(two_readers(memory_order_release, memory_order_acquire), Catch::Contains("1010"));
  CHECK_THAT(two_readers(memory_order_seq_cst, memory_order_seq_cst), !Catch::Contains("1010"));
}

TEST_CASE("Litmus: nobody sees a location go back") {
  const auto reads = [] {
    found[0] = shared.x.load(memory_order_relaxed);
    found[1] = shared.x.load(memory_order_relaxed);
  };
  const auto writes = [] {
    shared.x.store(1, memory_order_relaxed);
    shared.x.store(2, memory_order_relaxed);
  };
  CHECK(outcomes_of({reads, writes}) == "00 01 02 11 12 22");
}

TEST_CASE("Litmus: what is added at once is never lost") {
  const auto add = [](int thread) {
    return [thread] { found[thread] = shared.x.fetch_add(1, memory_order_relaxed); };
  };
  CHECK(outcomes_of({add(0), add(1), add(2)}) == "012 021 102 120 201 210");
}

std::string plain_message(std::memory_order store, std::memory_order load, bool fences = false) {
  return outcomes_of({[=] {
                        shared.plain = 7;
                        if (fences) std::atomic_thread_fence(memory_order_release);
                        shared.x.store(1, store);
                      },
                      [=] {
                        if (shared.x.load(load) == 0) return;
                        if (fences) std::atomic_thread_fence(memory_order_acquire);
                        found[0] = shared.plain;
                      }});
}

TEST_CASE("Litmus: a race is found where a message is not released, or not acquired") {
  const std::string race = "thread 1 reads what thread 0 has written, out of order, at A+12";
  CHECK(plain_message(memory_order_release, memory_order_acquire) == "- 7");
  CHECK(plain_message(memory_order_relaxed, memory_order_acquire) == race);
  CHECK(plain_message(memory_order_release, memory_order_relaxed) == race);
  CHECK(plain_message(memory_order_relaxed, memory_order_relaxed, true) == "- 7");
}

// The reader's own loads come before its word that it has read: a race if that word is relaxed.
std::string place_given_back(std::memory_order store) {
  return outcomes_of({[=] {
                        found[0] = shared.plain;
                        shared.x.store(1, store);
                      },
                      [=] {
                        if (shared.x.load(memory_order_acquire) == 1) shared.plain = 9;
                      }});
}

TEST_CASE("Litmus: a place is written again only by whom its reader has given it back to") {
  CHECK(place_given_back(memory_order_release) == "0");
  CHECK(place_given_back(memory_order_relaxed) ==
        "thread 1 writes what thread 0 may still read, at A+12");
}

TEST_CASE("Litmus: an addition hands on what was released before it") {
  CHECK(outcomes_of({[] {
                       shared.plain = 7;
                       shared.x.store(1, memory_order_release);
                     },
                     [] { shared.x.fetch_add(1, memory_order_relaxed); },
                     [] {
                       if (shared.x.load(memory_order_acquire) == 2) found[0] = shared.plain;
                     }}) == "- 7");
}

void wait_on_x() {
  while (shared.x.load(memory_order_relaxed) == 0) {
    ::syscall(SYS_futex, &shared.x, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  }
}

TEST_CASE("Litmus: who sleeps is woken, and a sleeper that nobody wakes is a failure") {
  const auto store = [] { shared.x.store(1, memory_order_relaxed); };
  const auto wake = [] { ::syscall(SYS_futex, &shared.x, FUTEX_WAKE, 9, nullptr, nullptr, 0); };
  CHECK(outcomes_of({wait_on_x, wait_on_x, [=] { store(), wake(); }}) == "-");
  CHECK(outcomes_of({wait_on_x, store}) == "nobody goes on: thread 0 sleeps on A+0;");
  CHECK(outcomes_of({wait_on_x, [=] { wake(), store(); }}) ==
        "nobody goes on: thread 0 sleeps on A+0;");
}

// The orders that are left out must not hide an outcome: a random walk leaves out none.
TEST_CASE("Litmus: a random walk finds nothing that the search has not found") {
  const std::vector<std::function<void()>> threads = {
      [] {
        shared.x.store(1, memory_order_seq_cst);
        found[0] = shared.y.fetch_add(1, memory_order_relaxed);
        shared.z.store(1, memory_order_release);
      },
      [] {
        found[1] = shared.z.load(memory_order_acquire) + 2 * shared.x.load(memory_order_relaxed);
        shared.y.store(5, memory_order_release);
      },
      [] {
        found[2] = shared.y.exchange(3, memory_order_acq_rel);
        found[3] = shared.x.load(memory_order_seq_cst);
      }};
  std::set<std::string> all, some;
  const Outcome outcome = explore(program(threads, &all));
  CHECK(outcome.failure.empty());
  CHECK(explore(program(threads, &some), {.executions = 20'000, .seed = 1}).failure.empty());
  CHECK(all == some);
  CHECK(outcome.executions < 2'000);
}

}  // namespace
}  // namespace ddprun::orders
