#pragma once
// Notifies an agent that its guardian is gone. The agent must then kill all below it at once: with
// the guardian went the last process that would have picked up what the workers leave behind.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>

#include "common/error.h"

namespace ddprun::agent {

class ParentWatch {
 public:
  explicit ParentWatch(boost::asio::io_context& loop) : pidfd_(loop), timer_(loop) {}

  // Calls `on_gone`, once, when `parent` has ended, which it may have already: from the loop, or
  // from within is_gone(). `parent` is the process id that the guardian had before it forked us.
  Result<void> start(int parent, std::function<void()> on_gone);

  // Whether it has ended; if so, `on_gone` has been called when this returns. The keeper, which
  // kills the workers of an agent whose guardian is gone, may be faster than our loop: then a
  // worker's end is seen before the guardian's, though it was later.
  bool is_gone();

 private:
  void look_again();

  int parent_ = 0;  // 0: nothing is watched.
  std::function<void()> on_gone_;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer timer_;  // Without pidfds.
};

}  // namespace ddprun::agent
