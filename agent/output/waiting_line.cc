#include "agent/output/waiting_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/system/log.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSilentAtFirst = 1s;
constexpr std::chrono::seconds kChangeEvery = 1s;
constexpr std::chrono::seconds kRemindEvery = 30s;

}  // namespace

WaitingLine::WaitingLine(boost::asio::io_context& loop)
    : timer_(loop), terminal_(::isatty(STDERR_FILENO) == 1) {}

void WaitingLine::show(std::string what, Duration left) {
  what_ = std::move(what);
  ends_.reset();
  if (left > Duration(0)) ends_ = Clock::now() + left;
  if (active_) return print();
  active_ = true;
  began_ = Clock::now();
  refresh();
}

void WaitingLine::done() {
  if (!active_) return;
  active_ = false;
  timer_.cancel();
  if (std::exchange(printed_, false)) std::fputs("\r\x1b[K", stderr);
  what_printed_.clear();
}

void WaitingLine::refresh() {
  timer_.expires_after(1s);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || !active_) return;
    print();
    refresh();
  });
}

void WaitingLine::print() {
  const auto now = Clock::now();
  if (now - began_ < kSilentAtFirst) return;
  std::string text = what_;
  if (ends_) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(*ends_ - now).count();
    if (left > 0) text += "; " + std::to_string(left) + " s left";
  }
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[Kddprun: %s", text.c_str());
    std::fflush(stderr);
    printed_ = true;
  } else if (now - printed_at_ >= (what_ == what_printed_ ? kRemindEvery : kChangeEvery)) {
    log::info(text);
    what_printed_ = what_;
    printed_at_ = now;
  }
}

}  // namespace ddprun::agent
