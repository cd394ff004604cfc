#pragma once
// --chaos: workers that are killed at random, for people wanting to see what their run makes of
// it. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "common/time.h"

namespace ddprun::agent {

struct ChaosOptions {
  Duration mean{0};  // From one kill to the next, on average; 0: none.
  std::uint64_t seed = 0;
};

// When to kill, and which worker. The same for the same seed, on every machine. Pure.
class ChaosDice {
 public:
  explicit ChaosDice(ChaosOptions options) : mean_(options.mean), random_(options.seed) {}

  Duration wait();  // Exponentially distributed: without a memory, as failures are.
  std::size_t pick(std::size_t candidates);  // One of that many.

 private:
  double between_0_and_1();

  Duration mean_;
  std::mt19937_64 random_;
};

class Chaos {
 public:
  Chaos(boost::asio::io_context& loop, ChaosOptions options) : dice_(options), timer_(loop) {}

  void start();  // Until stop().
  void stop() { timer_.cancel(); }

  std::function<std::vector<int>()> candidates;  // Local ranks.
  std::function<void(int local_rank)> on_kill;

 private:
  void kill_one();

  ChaosDice dice_;
  boost::asio::steady_timer timer_;
};

}  // namespace ddprun::agent
