#include "agent/node/status_line.h"

#include "agent/output/console.h"
#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLineStaysFresh = std::chrono::seconds(1);
constexpr auto kPollInterval = std::chrono::milliseconds(250);

}  // namespace

StatusLine::StatusLine(boost::asio::io_context& loop, Output& output, TimePoint began)
    : output_(output), began_(began), timer_(loop) {}

void StatusLine::start() {
  DDPRUN_ASSERT(may_show && facts && !started_);
  if (!read_terminal().can_move) return;
  started_ = true;
  log::before_lines([this] { output_.hide_status(); });
  poll_again();
}

void StatusLine::stop() {
  started_ = false;
  timer_.cancel();
  output_.hide_status();
  log::before_lines({});
}

void StatusLine::poll_again() {
  timer_.expires_after(kPollInterval);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || !started_) return;
    show();
    poll_again();
  });
}

void StatusLine::show() {
  if (!may_show()) return output_.hide_status();
  const TimePoint now = Clock::now();
  if (now - began_ < kLineStaysFresh) return;  // It may be over at once.
  if (now - made_ < kLineStaysFresh && output_.shows_status()) return;
  if (now - made_ >= kLineStaysFresh) {
    const TerminalFacts terminal = read_terminal();
    text_ = status_text(
        facts(), {.columns = terminal.columns, .colour = terminal.colour, .utf8 = terminal.utf8});
    made_ = now;
  }
  output_.show_status(text_);
}

}  // namespace ddprun::agent
