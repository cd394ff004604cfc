#pragma once
// Tells the user what is being waited for, and for how long yet: one line that is rewritten each
// second on a terminal; elsewhere a line when something changed, once a second at most, and now and
// then. Says nothing in the first second, so that a run that starts at once starts silently.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>

#include "common/time.h"

namespace ddprun::agent {

class WaitingLine {
 public:
  explicit WaitingLine(boost::asio::io_context& loop);

  // `what` without a full stop: "waiting for nodes: 1 of 2 here (hostA)". `left`: until it is given
  // up; 0: it is not, as for a spare.
  void show(std::string what, Duration left);
  void done();
  bool active() const { return active_; }
  bool on_terminal() const { return terminal_; }

 private:
  void refresh();
  void print();

  boost::asio::steady_timer timer_;
  const bool terminal_;
  bool active_ = false;
  bool printed_ = false;  // The terminal's line holds our text.
  std::string what_;
  std::string what_printed_;
  TimePoint began_{}, printed_at_{};  // printed_at_ of what_printed_.
  std::optional<TimePoint> ends_;
};

}  // namespace ddprun::agent
