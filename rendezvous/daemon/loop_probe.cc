#include "rendezvous/daemon/loop_probe.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

void LagCounts::add(Duration lag) {
  const double seconds = std::max(std::chrono::duration<double>(lag).count(), 0.0);
  const auto bound = std::lower_bound(kBoundsSeconds.begin(), kBoundsSeconds.end(), seconds);
  ++turns[static_cast<std::size_t>(bound - kBoundsSeconds.begin())];
  sum_seconds += seconds;
}

LoopProbe::LoopProbe(boost::asio::io_context& io, Milliseconds interval,
                     std::function<void()> on_beat)
    : timer_(io), interval_(interval), on_beat_(std::move(on_beat)) {
  wait();
}

void LoopProbe::wait() {
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    last_lag_ = std::chrono::steady_clock::now() - timer_.expiry();
    counts_.add(last_lag_);
    if (on_beat_) on_beat_();
    wait();
  });
}

}  // namespace ddprun::rendezvous
