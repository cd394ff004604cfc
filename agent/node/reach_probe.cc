#include "agent/node/reach_probe.h"

#include <poll.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr auto kReachLimit = 5s;     // Longer than a lost SYN takes, twice.
constexpr auto kReachPause = 500ms;  // Between two attempts.
constexpr auto kReachLong = 2s;      // Without an answer, when a worker has failed already.

std::string place_of(const ReachTarget& target) {
  return (target.kind == ReachTarget::Kind::kStore ? "store " : "node ") + target.address;
}

}  // namespace

// To one target, until it is reached or the time is over.
class ReachProbe::Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  using Done = std::function<void(Attempt&)>;

  Attempt(boost::asio::io_context& loop, ReachTarget target, Done done)
      : target_(std::move(target)), socket_(loop), timer_(loop), done_(std::move(done)) {}

  void start() {
    boost::system::error_code malformed;
    const auto address = boost::asio::ip::make_address(target_.address, malformed);
    if (malformed) return stop();  // A name, of an older ddprun's offer: workers look it up.
    place_ = tcp::endpoint(address, static_cast<std::uint16_t>(target_.port));
    connect();
  }

  void stop() {
    done_ = nullptr;
    boost::system::error_code ignored;
    timer_.cancel();
    socket_.close(ignored);
  }

  const ReachTarget& target() const { return target_; }
  bool is_reached() const { return is_reached_; }
  // Why it is not reached; nothing if it is, or may be soon.
  std::optional<std::string> error() const {
    if (!error_.empty()) return error_;
    const bool is_slow = done_ && !is_reached_ && Clock::now() - began_ >= kReachLong;
    if (is_slow) return reach_error(last_, Clock::now() - began_);
    return std::nullopt;
  }

 private:
  void connect() {
    timer_.expires_at(began_ + kReachLimit);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (!cancelled) self->overdue();
    });
    socket_.async_connect(place_, [self = shared_from_this()](boost::system::error_code error) {
      if (error != boost::asio::error::operation_aborted) self->ended(error);
    });
  }

  // If this process stood still meanwhile, the answer is there.
  void overdue() {
    pollfd entry{socket_.native_handle(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) > 0) return;
    ended(std::make_error_code(std::errc::timed_out));
  }

  void ended(const std::error_code& error) {
    if (!done_) return;
    boost::system::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    last_ = error;
    const Duration waited = Clock::now() - began_;
    switch (reached(target_, error, waited + kReachPause > kReachLimit)) {
      case Reached::kAgain: return again();
      case Reached::kYes: is_reached_ = true; break;
      case Reached::kNo: error_ = reach_error(error, waited); break;
    }
    std::exchange(done_, nullptr)(*this);
  }

  void again() {
    timer_.expires_after(kReachPause);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (!cancelled && self->done_) self->connect();
    });
  }

  const ReachTarget target_;
  const TimePoint began_ = Clock::now();
  tcp::endpoint place_;
  tcp::socket socket_;
  boost::asio::steady_timer timer_;
  Done done_;  // Empty: it has ended.
  std::error_code last_;
  bool is_reached_ = false;
  std::string error_;
};

void ReachProbe::begin(std::vector<ReachTarget> targets, ReachView view) {
  stop();
  attempts_.clear();
  view_ = std::move(view);
  for (ReachTarget& target : targets) {
    if (reached_.contains(place_of(target))) continue;
    const auto done = [this](Attempt& attempt) {
      const std::string place = place_of(attempt.target());
      if (attempt.is_reached()) return void(reached_.insert(place));
      if (!reported_.insert(place).second || !on_unreachable) return;
      on_unreachable(unreachable_text(attempt.target(), view_, *attempt.error()));
    };
    attempts_.push_back(std::make_shared<Attempt>(loop_, std::move(target), done));
    attempts_.back()->start();
  }
}

void ReachProbe::stop() {
  for (const auto& attempt : attempts_) attempt->stop();
}

std::string ReachProbe::unreachable() const {
  std::string text;
  for (const auto& attempt : attempts_) {
    const auto error = attempt->error();
    if (!error) continue;
    text += (text.empty() ? "" : ". ") + unreachable_text(attempt->target(), view_, *error);
  }
  return text;
}

}  // namespace ddprun::agent
