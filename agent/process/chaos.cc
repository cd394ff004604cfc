#include "agent/process/chaos.h"

#include <cmath>

#include "common/assert.h"

namespace ddprun::agent {

// Not std::uniform_real_distribution, because its numbers depend on the library.
double ChaosDice::between_0_and_1() {
  constexpr int kUnused = 11;  // Bits beyond what a double holds.
  return std::ldexp(static_cast<double>(random_() >> kUnused), kUnused - 64);
}

Duration ChaosDice::wait() {
  DDPRUN_ASSERT(mean_ > Duration::zero());
  const double factor = -std::log1p(-between_0_and_1());
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(mean_) * factor);
}

std::size_t ChaosDice::pick(std::size_t candidates) {
  DDPRUN_ASSERT(candidates > 0);
  return random_() % candidates;
}

void Chaos::start() {
  DDPRUN_ASSERT(candidates && on_kill);
  timer_.expires_after(dice_.wait());
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec) return;
    kill_one();
    start();
  });
}

void Chaos::kill_one() {
  const std::vector<int> living = candidates();
  if (!living.empty()) on_kill(living[dice_.pick(living.size())]);
}

}  // namespace ddprun::agent
