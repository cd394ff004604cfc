#include "rendezvous/net/accept_loop.h"

#include <cerrno>

#include "common/system/log.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kAcceptsPerTurn = 64;  // So that connections that exist are served between new ones.
constexpr Milliseconds kPause(50);   // After a failure such as "too many open files".
constexpr Milliseconds kShortagePatience(2000);

}  // namespace

std::shared_ptr<AcceptLoop> AcceptLoop::start(boost::asio::io_context& io, UniqueFd listening,
                                              OnSocket on_socket) {
  std::shared_ptr<AcceptLoop> loop(new AcceptLoop(io, std::move(on_socket)));
  const auto protocol = local_address(listening.get()).is_v6() ? boost::asio::ip::tcp::v6()
                                                               : boost::asio::ip::tcp::v4();
  loop->acceptor_.assign(protocol, listening.release());
  loop->wait();
  return loop;
}

void AcceptLoop::stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void AcceptLoop::wait() {
  acceptor_.async_wait(boost::asio::ip::tcp::acceptor::wait_read,
                       [self = shared_from_this()](boost::system::error_code error) {
                         if (!error && self->acceptor_.is_open()) self->take();
                       });
}

void AcceptLoop::take() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Result<std::optional<AcceptedSocket>> accepted = accept_socket(acceptor_.native_handle());
    if (!accepted) {
      outlast(accepted.error());
      return pause();
    }
    if (!*accepted) break;
    said_ = closes_ = false;
    on_socket_(std::move(**accepted));
    if (!acceptor_.is_open()) return;
  }
  wait();
}

// Each is logged once per shortage.
void AcceptLoop::outlast(const Failure& failure) {
  const auto now = std::chrono::steady_clock::now();
  if (!said_) {
    log::warning(to_string(failure) + "; retrying until this is over");
    short_since_ = now;
  }
  said_ = true;
  const int error = failure.code.value();
  const bool is_short = error == EMFILE || error == ENFILE;
  if (!is_short || now - short_since_ < kShortagePatience) return;
  if (spare_.turn_away(acceptor_.native_handle()) == 0 || closes_) return;
  closes_ = true;
  log::warning(to_string(failure) +
               "; closing new connections until this is over, so that their other ends do not "
               "wait for an answer");
}

// The connection that could not be taken is still waiting, so that waiting for it would return at
// once.
void AcceptLoop::pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && self->acceptor_.is_open()) self->take();
  });
}

}  // namespace ddprun::rendezvous
