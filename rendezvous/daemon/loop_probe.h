#pragma once
// Asks the loop for a turn now and then and notes how late it comes: the daemon's answer to "is it
// overloaded". What must only happen while the loop turns, such as telling a watchdog, happens on
// its beat.

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>

#include "common/time.h"

namespace ddprun::rendezvous {

struct LagCounts {
  static constexpr std::array<double, 6> kBoundsSeconds = {0.001, 0.005, 0.025, 0.1, 0.5, 2.5};
  // How many turns came at most so late; the last are those that came later still.
  std::array<std::uint64_t, kBoundsSeconds.size() + 1> turns{};
  double sum_seconds = 0;

  void add(Duration lag);
};

class LoopProbe {
 public:
  // Beats from the next turn of the loop on, every `interval`.
  LoopProbe(boost::asio::io_context& io, Milliseconds interval, std::function<void()> on_beat);

  const LagCounts& counts() const { return counts_; }
  Duration last_lag() const { return last_lag_; }

 private:
  void wait();

  boost::asio::steady_timer timer_;
  const Milliseconds interval_;
  const std::function<void()> on_beat_;
  LagCounts counts_;
  Duration last_lag_{0};
};

}  // namespace ddprun::rendezvous
