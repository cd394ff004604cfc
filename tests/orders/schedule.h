#pragma once
// Which thread goes next and which value a load finds, over all executions: a path through the tree
// of these choices, and what of it is still to be tried. Pure.

#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/orders/weak_memory.h"

namespace ddprun::orders {

using Threads = unsigned;  // A set: bit t.

constexpr Threads one(int thread) { return 1U << thread; }

// Whether it matters which of the two comes first.
bool depend(const Access& a, const Access& b);

class Schedule {
 public:
  explicit Schedule(unsigned seed) : seed_(seed), random_(seed) {}

  // An execution begins at the root.
  void begin();
  // `next` has the access before which each of `ready` stands. The answer is one of them.
  int choose(Threads ready, const std::array<Access, kThreadsMax>& next);
  // What the chosen thread finds there: a number below `choices`.
  std::size_t choose_value(std::size_t choices);
  // The chosen thread's access has made `woken` ready; or the end of all others has.
  void follow(Threads woken);
  void follow_all(Threads woken);
  // False: there is no other execution.
  bool advance();

 private:
  using Clock = std::array<std::size_t, kThreadsMax>;
  struct Step {
    Threads ready = 0, tried = 0, to_try = 0, asleep = 0;
    int thread = 0;
    std::size_t value = 0, values = 1;
    Access access = {};
    Clock clock = {};
  };

  Threads asleep_now(const std::array<Access, kThreadsMax>& next) const;
  void enter(Step& step);
  bool comes_before(std::size_t i, const Step& step) const;
  void try_before(std::size_t i);

  const unsigned seed_;
  std::mt19937 random_;
  std::vector<Step> path_;
  std::size_t depth_ = 0;   // How many of them have been taken.
  bool redundant_ = false;  // Whatever follows has been seen in another order.
  std::array<Clock, kThreadsMax> clocks_{};
};

}  // namespace ddprun::orders
