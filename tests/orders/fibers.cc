#include "tests/orders/fibers.h"

#include <cstdint>
#include <cstring>

#include "common/assert.h"

namespace ddprun::orders {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;

}  // namespace

void Fibers::begin(unsigned high, unsigned low) {
  const auto address = static_cast<std::uintptr_t>(high) << 32 | low;
  (*reinterpret_cast<Fiber*>(address)->body)();
  DDPRUN_ASSERT(false);  // It has left.
}

void Fibers::swap(Fiber& from, Fiber& to) {
  void* exceptions = abi::__cxa_get_globals();
  std::memcpy(from.exceptions.data(), exceptions, sizeof from.exceptions);
  std::memcpy(exceptions, to.exceptions.data(), sizeof to.exceptions);
  DDPRUN_ASSERT(::swapcontext(&from.context, &to.context) == 0);
}

void Fibers::run(const std::vector<std::function<void()>>& bodies, int first) {
  fibers_.resize(bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    Fiber& fiber = fibers_[i];
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
    fiber.body = &bodies[i];
    fiber.exceptions = {};
    DDPRUN_ASSERT(::getcontext(&fiber.context) == 0);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(&fiber);
    // makecontext() passes ints.
    ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Fibers::begin), 2,
                  static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }
  current_ = first;
  swap(outside_, fibers_[static_cast<std::size_t>(first)]);
  current_ = -1;
}

void Fibers::go_on(int other) {
  Fiber& from = fibers_[static_cast<std::size_t>(current_)];
  current_ = other;
  swap(from, fibers_[static_cast<std::size_t>(other)]);
}

void Fibers::leave() { swap(fibers_[static_cast<std::size_t>(current_)], outside_); }

}  // namespace ddprun::orders
