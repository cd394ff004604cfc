#include "rendezvous/net/link.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/assert.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr int kReadsPerTurn = 16;  // Of one link, so that none keeps the others waiting.
constexpr std::size_t kReadBytes = 16 << 10;

// Numeric; or, of one end of a socket pair, what is behind the other.
std::string peer_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  const bool is_pair = ::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                       address.ss_family == AF_UNIX;
  return is_pair ? "the other end of a relayed stream" : peer_address(socket).to_string();
}

}  // namespace

std::shared_ptr<Link> Link::make(Connected connection, LinkOptions options,
                                 std::shared_ptr<void> slot) {
  return std::shared_ptr<Link>(new Link(std::move(connection), options, std::move(slot)));
}

Link::Link(Connected connection, LinkOptions options, std::shared_ptr<void> slot)
    : connection_(std::move(connection)),
      options_(options),
      slot_(std::move(slot)),
      peer_address_(peer_of(connection_.socket.native_handle())),
      local_address_(rendezvous::local_address(connection_.socket.native_handle()).to_string()),
      close_timer_(connection_.socket.get_executor()),
      frames_(options.body_bytes_max) {}

void Link::start(Handlers handlers) {
  DDPRUN_ASSERT(!handlers_.on_closed && handlers.on_closed);
  handlers_ = std::move(handlers);
  if (reading_) return;  // close() came first.
  reading_ = true;
  post(&Link::read);
}

void Link::post(void (Link::*step)()) {
  boost::asio::post(connection_.socket.get_executor(),
                    [self = shared_from_this(), step] { ((*self).*step)(); });
}

void Link::send(std::string_view body) {
  if (state_ != State::kOpen) return;
  append_frame(out_, body);
  if (out_.size() - sent_ > options_.unsent_bytes_max) {
    return fail_soon({Errc::kPeerSilent, "link to " + peer_address_ + ": it has left " +
                                             std::to_string(out_.size() - sent_) +
                                             " bytes unread"});
  }
  flush_soon();
}

void Link::close() {
  if (state_ != State::kOpen) return;
  state_ = State::kClosing;
  close_timer_.expires_after(options_.close_timeout);
  close_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error) {
      self->finish({make_error_code(boost::asio::error::operation_aborted), "closing a link"});
    }
  });
  flush_soon();
  if (reading_) return;
  reading_ = true;
  post(&Link::read);
}

Released Link::release() {
  DDPRUN_ASSERT(state_ == State::kOpen);
  state_ = State::kClosed;
  close_timer_.cancel();
  boost::system::error_code ignored;
  UniqueFd fd(connection_.socket.release(ignored));
  return {std::move(fd), std::move(connection_.channel), frames_.take_rest(), out_.substr(sent_),
          std::move(slot_)};
}

std::optional<PeerKernel> Link::peer_kernel() {
  if (state_ == State::kClosed) return std::nullopt;
  return rendezvous::peer_kernel(connection_.socket.native_handle());
}

void Link::flush_soon() {
  if (flush_posted_) return;
  flush_posted_ = true;
  post(&Link::flush);
}

void Link::flush() {
  flush_posted_ = false;
  if (wait_write_) return;
  if (state_ != State::kOpen && state_ != State::kClosing) return;
  while (sent_ < out_.size()) {
    const ChannelStep step = connection_.channel->write(std::string_view(out_).substr(sent_));
    if (step.status != StepStatus::kDone) return finish_as(step);
    DDPRUN_ASSERT(step.bytes > 0 && step.bytes <= out_.size() - sent_);
    sent_ += step.bytes;
  }
  sent_ = 0;
  if (out_.capacity() > kReadBytes) {
    std::string().swap(out_);
  } else {
    out_.clear();
  }
  if (state_ != State::kClosing || sending_closed_) return;
  sending_closed_ = true;
  connection_.channel->close_sending();
}

void Link::read() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (state_ != State::kOpen && state_ != State::kClosing) return;
    std::array<char, kReadBytes> bytes;
    const ChannelStep step = connection_.channel->read(bytes.data(), bytes.size());
    if (step.status == StepStatus::kWantWrite) read_wants_write_ = true;
    if (step.status != StepStatus::kDone) return finish_as(step);
    if (state_ == State::kClosing) continue;
    DDPRUN_ASSERT(step.bytes <= bytes.size());
    frames_.feed({bytes.data(), step.bytes});
    if (!deliver()) return;
    if (!step.more) return wait_for(StepStatus::kWantRead);
  }
  post(&Link::read);
}

// False once the link is over. A handler may call close() or send() and so change our state.
bool Link::deliver() {
  while (state_ == State::kOpen) {
    Result<std::optional<std::string>> body = frames_.next();
    if (!body) {
      finish({body.error().code, "link to " + peer_address_ + ": " + body.error().context});
      return false;
    }
    if (!*body) return true;
    handlers_.on_message(std::move(**body));
  }
  return state_ == State::kClosing;
}

// A step that was not done either waits for the socket or ends the link.
void Link::finish_as(const ChannelStep& step) {
  switch (step.status) {
    case StepStatus::kDone: return;
    case StepStatus::kWantRead:
    case StepStatus::kWantWrite: return wait_for(step.status);
    case StepStatus::kClosed:
      return finish({make_error_code(boost::asio::error::eof),
                     "link to " + peer_address_ + ": the peer closed it"});
    case StepStatus::kFailed:
      return finish({step.failure.code, "link to " + peer_address_ + ": " + step.failure.context});
  }
}

void Link::wait_for(StepStatus want) {
  DDPRUN_ASSERT(want == StepStatus::kWantRead || want == StepStatus::kWantWrite);
  bool& waiting = want == StepStatus::kWantRead ? wait_read_ : wait_write_;
  if (waiting) return;
  waiting = true;
  wait(want == StepStatus::kWantRead ? tcp::socket::wait_read : tcp::socket::wait_write);
}

void Link::wait(tcp::socket::wait_type what) {
  connection_.socket.async_wait(what, [self = shared_from_this(), what](boost::system::error_code) {
    if (self->state_ == State::kClosed) return;
    (what == tcp::socket::wait_read ? self->wait_read_ : self->wait_write_) = false;
    self->flush();  // TLS may have to read before it can write, and the other way round.
    if (what == tcp::socket::wait_read || std::exchange(self->read_wants_write_, false))
      self->read();
  });
}

void Link::fail_soon(Failure why) {
  DDPRUN_ASSERT(state_ == State::kOpen);
  state_ = State::kFailing;
  boost::asio::post(connection_.socket.get_executor(),
                    [self = shared_from_this(), why = std::move(why)] { self->finish(why); });
}

void Link::finish(Failure why) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kClosing) {
    why = {make_error_code(boost::asio::error::operation_aborted),
           "link to " + peer_address_ + ": closed by us"};
  }
  state_ = State::kClosed;
  close_timer_.cancel();
  boost::system::error_code ignored;
  connection_.socket.close(ignored);
  slot_.reset();
  const Handlers handlers = std::move(handlers_);
  handlers_ = {};
  if (handlers.on_closed) handlers.on_closed(why);
}

}  // namespace ddprun::rendezvous
