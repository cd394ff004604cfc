#pragma once
// Threads of one thread: each has a stack of its own, and only one runs. Handing over costs less
// than a microsecond, so that an execution can be repeated some ten thousand times a second.

#include <cxxabi.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace ddprun::orders {

class Fibers {
 public:
  // Runs `bodies[first]` until one calls leave(). A body never returns: it leaves.
  void run(const std::vector<std::function<void()>>& bodies, int first);
  // From a body: the other goes on where it was, or begins.
  void go_on(int other);
  void leave();                             // run() returns.
  int current() const { return current_; }  // -1: outside.

 private:
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    std::array<void*, 2> exceptions{};  // Those that the C++ library is about to handle there.
    const std::function<void()>* body = nullptr;
  };
  static void begin(unsigned high, unsigned low);
  void swap(Fiber& from, Fiber& to);

  std::vector<Fiber> fibers_;
  Fiber outside_;
  int current_ = -1;
};

}  // namespace ddprun::orders
