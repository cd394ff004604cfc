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
  explicit ParentWatch(boost::asio::io_context& loop) : pidfd_(loop), look_(loop) {}

  // Calls `on_gone` from the loop, once, when `parent` has ended, which it may have already.
  // `parent` is the process id that the guardian had before it forked us.
  Result<void> start(int parent, std::function<void()> on_gone);

 private:
  void look_again(int parent, std::function<void()> on_gone);

  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer look_;  // Without pidfds.
};

}  // namespace ddprun::agent
