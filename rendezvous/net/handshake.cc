#include "rendezvous/net/handshake.h"

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

namespace ddprun::rendezvous {

using boost::asio::ip::tcp;

std::shared_ptr<Handshake> Handshake::start(Connected connection, Milliseconds timeout,
                                            OnDone on_done, std::function<void()> on_ready) {
  std::shared_ptr<Handshake> self(
      new Handshake(std::move(connection), std::move(on_done), std::move(on_ready)));
  self->timer_.expires_after(timeout);
  self->timer_.async_wait([self, timeout](boost::system::error_code error) {
    if (error || self->over_) return;
    self->finish(Failure{Errc::kPeerSilent, "it did not finish the handshake within " +
                                                std::to_string(timeout.count()) + " ms"});
  });
  if (self->on_ready_) {
    self->wait(tcp::socket::wait_read);
  } else {
    self->proceed();
  }
  return self;
}

void Handshake::proceed() {
  boost::asio::post(connection_.socket.get_executor(),
                    [self = shared_from_this()] { self->step(); });
}

void Handshake::cancel() {
  if (over_) return;
  over_ = true;
  on_ready_ = nullptr;
  timer_.cancel();
  boost::system::error_code ignored;
  connection_.socket.close(ignored);
}

void Handshake::step() {
  if (over_) return;
  ChannelStep taken = connection_.channel->handshake();
  switch (taken.status) {
    case StepStatus::kDone: return finish(std::move(connection_));
    case StepStatus::kWantRead: return wait(tcp::socket::wait_read);
    case StepStatus::kWantWrite: return wait(tcp::socket::wait_write);
    case StepStatus::kClosed:
      return finish(Failure{boost::asio::error::eof, "it hung up during the handshake"});
    case StepStatus::kFailed: return finish(std::move(taken.failure));
  }
}

void Handshake::wait(tcp::socket::wait_type what) {
  connection_.socket.async_wait(what, [self = shared_from_this()](boost::system::error_code) {
    if (self->over_) return;
    if (self->on_ready_) return self->listen();
    self->step();  // Whatever happened to the socket, the channel says it better.
  });
}

void Handshake::listen() {
  if (connection_.channel->first_words().status == StepStatus::kWantRead) {
    return wait(tcp::socket::wait_read);
  }
  std::exchange(on_ready_, nullptr)();
}

void Handshake::finish(Result<Connected> result) {
  over_ = true;
  on_ready_ = nullptr;
  timer_.cancel();
  if (!result) {
    boost::system::error_code ignored;
    connection_.socket.close(ignored);
  }
  const OnDone on_done = std::move(on_done_);
  on_done(std::move(result));
}

}  // namespace ddprun::rendezvous
