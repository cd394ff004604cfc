#include "rendezvous/net/channel.h"

#include <openssl/err.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <span>

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

UniqueFd Handshake::release() {
  over_ = true;
  timer_.cancel();
  connection_.channel.reset();
  boost::system::error_code ignored;
  return UniqueFd(connection_.socket.release(ignored));
}

void Handshake::step() {
  if (over_) return;
  ChannelStep taken = connection_.channel->handshake();
  switch (taken.status) {
    case StepStatus::kDone: return finish(std::move(connection_));
    case StepStatus::kWantRead: return wait(tcp::socket::wait_read);
    case StepStatus::kWantWrite: return wait(tcp::socket::wait_write);
    case StepStatus::kClosed:
      return finish(
          Failure{make_error_code(boost::asio::error::eof), "it hung up during the handshake"});
    case StepStatus::kFailed: return finish(std::move(taken.failure));
  }
}

void Handshake::wait(tcp::socket::wait_type what) {
  connection_.socket.async_wait(what, [self = shared_from_this()](boost::system::error_code) {
    if (self->over_) return;
    if (self->on_ready_) return self->listen();
    self->step();  // The channel reports better what happened to the socket.
  });
}

void Handshake::listen() {
  if (connection_.channel->first_message().status == StepStatus::kWantRead) {
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

namespace {

constexpr char kTlsHandshake = 0x16;  // First byte of a TLS client's first message.
constexpr char kTlsAlert =
    0x15;  // First byte of a TLS server's refusal. No frame begins with either.
constexpr char kStoreRequestMax = 0x14;  // TCPStore's requests are numbered from 0; all are below.
constexpr std::string_view kHandshakeFailure("\x15\x03\x03\x00\x02\x02\x28", 7);

ChannelStep failed(Errc code, std::string context) {
  return {StepStatus::kFailed, 0, {make_error_code(code), std::move(context)}};
}

ChannelStep failed_by_errno(const char* what) {
  return {StepStatus::kFailed, 0, errno_failure(what)};
}

// The first bytes that the peer sent, left where they are.
ChannelStep peek(int fd, std::span<char> bytes) {
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK);
  if (got > 0) return {StepStatus::kDone, static_cast<std::size_t>(got)};
  if (got == 0) return {StepStatus::kClosed};
  if (errno == EAGAIN || errno == EINTR) return {StepStatus::kWantRead};
  return failed_by_errno("reading");
}

// From now on the socket counts as readable only with so many bytes, or at its end.
void readable_with(int fd, int bytes) {
  ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

// Sends a fatal alert, which a peer with TLS understands, if only one side uses TLS. What the peer
// has sent is read first, else closing would reset the connection and the alert would be lost.
void refuse(int fd) {
  std::array<char, 16 << 10> unread;
  while (::recv(fd, unread.data(), unread.size(), 0) == static_cast<ssize_t>(unread.size())) {
  }
  [[maybe_unused]] const ssize_t best_effort =
      ::send(fd, kHandshakeFailure.data(), kHandshakeFailure.size(), MSG_NOSIGNAL);
}

}  // namespace

// Two zeros begin a frame of the control link, whose client has no token and is to be refused; a
// SET of 1.13 has the length of a key behind the first.
bool Handshake::begins_as_store_client() {
  std::array<char, 2> first{};
  const ChannelStep step = peek(connection_.socket.native_handle(), first);
  if (step.status != StepStatus::kDone || first[0] < 0 || first[0] > kStoreRequestMax) return false;
  return first[0] != 0 || first[1] != 0 || step.bytes == 1;
}

namespace {

class PlainChannel : public Channel {
 public:
  PlainChannel(int fd, TlsRole role) : fd_(fd), role_(role) {}

  ChannelStep first_message() override {
    char first = 0;
    return peek(fd_, {&first, 1});
  }

  // A server waits until the client speaks, so that silent connections do not become links.
  ChannelStep handshake() override {
    if (role_ == TlsRole::kClient) return {StepStatus::kDone};
    char first = 0;
    ChannelStep step = peek(fd_, {&first, 1});
    if (step.status != StepStatus::kDone || first != kTlsHandshake) return step;
    refuse(fd_);
    return failed(Errc::kBadToken, "it uses a token, but this run has none");
  }

  ChannelStep read(char* into, std::size_t size) override {
    const ssize_t got = ::recv(fd_, into, size, 0);
    if (got == 0) return {StepStatus::kClosed};
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return {StepStatus::kWantRead};
      return failed_by_errno("reading");
    }
    if (!has_received_ && role_ == TlsRole::kClient && into[0] == kTlsAlert) {
      return failed(Errc::kBadToken, "it requires a token, but none was given");
    }
    has_received_ = true;
    const auto bytes = static_cast<std::size_t>(got);
    return {StepStatus::kDone, bytes, {}, bytes == size};
  }

  ChannelStep write(std::string_view bytes) override {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) return {StepStatus::kDone, static_cast<std::size_t>(sent)};
    if (errno == EAGAIN || errno == EINTR) return {StepStatus::kWantWrite};
    return failed_by_errno("writing");
  }

  void close_sending() override { ::shutdown(fd_, SHUT_WR); }

 private:
  const int fd_;
  const TlsRole role_;
  bool has_received_ = false;
};

// A TLS record begins with its kind, two bytes of version and two of its length.
constexpr int kRecordHead = 5;
constexpr int kFirstMessageMax = 2048;  // A ClientHello of ours has about 250 bytes.

int record_bytes(std::span<const char, kRecordHead> head) {
  return static_cast<unsigned char>(head[3]) << 8 | static_cast<unsigned char>(head[4]);
}

// Does this reason, of an alert that a TLS server sent, mean that it could not use our key?
bool means_other_token(int reason) {
  switch (reason - SSL_AD_REASON_OFFSET) {
    case SSL_AD_ILLEGAL_PARAMETER:  // OpenSSL's, for a key that differs.
    case SSL_AD_DECRYPT_ERROR:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
    case SSL_AD_HANDSHAKE_FAILURE: return true;
    default: return false;
  }
}

class TlsChannel : public Channel {
 public:
  TlsChannel(int fd, const TlsContext& context, TlsRole role)
      : fd_(fd), role_(role), context_(context) {}

  // Half a record would only occupy an engine, and its sender may never send the rest.
  ChannelStep first_message() override {
    std::array<char, kRecordHead> head;
    ChannelStep step = peek(fd_, head);
    if (step.status != StepStatus::kDone || head[0] != kTlsHandshake) return step;
    int wanted = kRecordHead;
    if (step.bytes == kRecordHead) wanted = std::min(wanted + record_bytes(head), kFirstMessageMax);
    int there = 0;
    if (::ioctl(fd_, FIONREAD, &there) != 0) return failed_by_errno("reading");
    // Readable again without a byte more: that was the end.
    const bool enough = there >= wanted || there == there_before_;
    if (!enough || there_before_ >= 0) readable_with(fd_, enough ? 1 : wanted);
    there_before_ = there;
    has_received_ = enough;
    return {enough ? StepStatus::kDone : StepStatus::kWantRead};
  }

  ChannelStep handshake() override {
    if (role_ == TlsRole::kServer && !has_received_) {
      char first = 0;
      ChannelStep step = peek(fd_, {&first, 1});
      if (step.status != StepStatus::kDone) return step;
      has_received_ = true;
      if (first != kTlsHandshake) {
        refuse(fd_);
        return failed(Errc::kBadToken, "it does not use TLS, so it has no token");
      }
    }
    if (!ssl_) ssl_ = make_tls_engine(context_, role_, fd_);
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_.get());
    if (done != 1) return explain_handshake(done);
    // OpenSSL calls a pre-shared key a resumed session. Without one the peer has proved nothing.
    if (SSL_session_reused(ssl_.get()) == 1) return {StepStatus::kDone};
    return failed(Errc::kBadToken, "it finished the handshake without the token");
  }

  ChannelStep read(char* into, std::size_t size) override {
    ERR_clear_error();
    std::size_t got = 0;
    const int done = SSL_read_ex(ssl_.get(), into, size, &got);
    if (done != 1) return explain(done, "reading");
    return {StepStatus::kDone, got, {}, SSL_has_pending(ssl_.get()) == 1 || !drained(ssl_.get())};
  }

  ChannelStep write(std::string_view bytes) override {
    ERR_clear_error();
    std::size_t sent = 0;
    const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &sent);
    return done == 1 ? ChannelStep{StepStatus::kDone, sent} : explain(done, "writing");
  }

  void close_sending() override {
    ERR_clear_error();
    if (ssl_) SSL_shutdown(ssl_.get());
    ::shutdown(fd_, SHUT_WR);
  }

 private:
  ChannelStep explain(int done, const char* what) {
    const int error = errno;
    switch (SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ: return {StepStatus::kWantRead};
      case SSL_ERROR_WANT_WRITE: return {StepStatus::kWantWrite};
      case SSL_ERROR_ZERO_RETURN: return {StepStatus::kClosed};
      case SSL_ERROR_SYSCALL:
        errno = error;
        return error == 0 ? ChannelStep{StepStatus::kClosed} : failed_by_errno(what);
      default: break;
    }
    const unsigned long first = ERR_peek_error();
    if (ERR_GET_REASON(first) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return {StepStatus::kClosed};
    const char* text = ERR_reason_error_string(first);
    return failed(Errc::kBadMessage, std::string(what) + " (" + (text ? text : "TLS error") + ")");
  }

  ChannelStep explain_handshake(int done) {
    ChannelStep step = explain(done, "in the TLS handshake");
    if (step.status != StepStatus::kFailed) return step;
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (role_ == TlsRole::kServer && reason == SSL_R_BINDER_DOES_NOT_VERIFY) {
      return failed(Errc::kBadToken, "it has another token");
    }
    if (role_ == TlsRole::kClient && means_other_token(reason)) {
      return failed(Errc::kBadToken, "it does not accept our token");
    }
    return step;
  }

  const int fd_;
  const TlsRole role_;
  const TlsContext context_;
  SslPtr ssl_;  // Made when it is needed: peers that never speak cost no more than their socket.
  bool has_received_ = false;
  int there_before_ = -1;  // Bytes of the first words, when there were too few of them.
};

}  // namespace

std::unique_ptr<Channel> make_plain_client(int fd) {
  return std::make_unique<PlainChannel>(fd, TlsRole::kClient);
}
std::unique_ptr<Channel> make_plain_server(int fd) {
  return std::make_unique<PlainChannel>(fd, TlsRole::kServer);
}
std::unique_ptr<Channel> make_tls_channel(int fd, const TlsContext& context, TlsRole role) {
  return std::make_unique<TlsChannel>(fd, context, role);
}

}  // namespace ddprun::rendezvous
