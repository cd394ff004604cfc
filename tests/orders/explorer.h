#pragma once
// Runs a few threads on weakly ordered memory in every way that can make a difference: each order
// of their atomic accesses, and each value that a load may find. The threads are the product's own
// code, compiled with -fsanitize=thread: the compiler then calls a function for each access to
// memory, and compiler_calls.cc hands those of watched memory to this. Futexes are the model's: a
// sleeper that no thread will wake is a failure, unless the program may count on the time that it
// gave the kernel.
//
// Orders of independent accesses are explored once (dynamic partial-order reduction with source
// sets and sleep sets: Abdulla, Aronis, Jonsson and Sagonas, 2014).

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/orders/weak_memory.h"

namespace ddprun::orders {

struct Program {
  std::function<void()> before = [] {};  // Makes memory new; the threads have not begun.
  std::vector<std::function<void()>> threads = {};
  std::function<void()> after = [] {};  // All have ended.
  bool times_out =
      false;  // A thread's sleep may end at once, once, and when no other thread can go on.
};

struct Bounds {
  long executions = 2'000'000;
  unsigned seed = 0;  // Not 0: that many random executions instead of all.
};

struct Outcome {
  std::string failure;  // What went wrong, and everything that led to it. Empty: nothing.
  long executions = 0;
  bool all = false;  // There are no others.

  // "all well in all 120 executions"
  std::string text() const;
};

Outcome explore(const Program& program, Bounds bounds = {});

// Until the next execution begins, accesses to this memory are the model's. For `before`.
void watch(const void* memory, std::size_t bytes);
// Ends the execution. For threads and `after`.
void fail(const std::string& why);
void expect(bool holds, const std::string& what);

// For compiler_calls.cc. None of these does anything outside a thread of an execution.
bool is_watched(const void* memory);
std::uint64_t carry_out(const Access& access);
void carry_out_fence(Order order);
void note_plain(const void* memory, std::size_t bytes, bool writes);

}  // namespace ddprun::orders
