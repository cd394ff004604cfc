#pragma once
// The line that a terminal shows below the workers' lines while a run trains: made once per second,
// hidden while another line is written. Its text is that of agent/verdict/verdict_picture.h. Owned
// by Agent.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "agent/output/output.h"
#include "agent/verdict/verdict_picture.h"
#include "common/time.h"

namespace ddprun::agent {

class StatusLine {
 public:
  // `began`: when the run was started here. One that is over at once never shows the line.
  StatusLine(boost::asio::io_context& loop, Output& output, TimePoint began);

  std::function<bool()> may_show;      // Whether there is something to show at this moment.
  std::function<StatusFacts()> facts;  // Called when a line is made.

  void start();  // Does nothing if our standard error cannot show it.
  void stop();

 private:
  void poll_again();
  void show();

  Output& output_;
  const TimePoint began_;
  boost::asio::steady_timer timer_;
  bool started_ = false;
  std::string text_;
  TimePoint made_{};
};

}  // namespace ddprun::agent
