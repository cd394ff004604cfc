#include "rendezvous/net/accept_loop.h"

#include "common/system/log.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kAcceptsPerTurn = 64;  // So that connections that exist are served between new ones.
constexpr Milliseconds kPause(50);   // After a failure such as "too many open files".

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
      if (!said_) log::warning(to_string(accepted.error()) + "; retrying until this is over");
      said_ = true;
      return pause();
    }
    if (!*accepted) break;
    said_ = false;
    on_socket_(std::move(**accepted));
    if (!acceptor_.is_open()) return;
  }
  wait();
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
