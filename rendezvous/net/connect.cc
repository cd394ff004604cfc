#include "rendezvous/net/connect.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "common/assert.h"
#include "common/system/signals.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rendezvous {
namespace {

// Blocks, as long as the resolver likes.
Result<Addresses> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    return Failure{Errc::kNotFound,
                   "cannot resolve host '" + host + "' (" + ::gai_strerror(error) + ")"};
  }
  Addresses addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    boost::asio::ip::tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
    addresses.push_back(endpoint.address());
  }
  ::freeaddrinfo(list);
  return addresses;
}

// Shared by the loop and the resolving thread. The thread may outlive its caller, so it posts only
// if `wanted`, under the lock, shows that the caller still waits and hence that the loop is alive.
struct Lookup {
  std::mutex mutex;
  bool wanted = true;
  boost::asio::any_io_executor executor;
  std::function<void(Result<Addresses>)> handler;  // Touched by the loop's thread only.
};

void deliver(const std::shared_ptr<Lookup>& lookup, Result<Addresses> addresses) {
  const std::lock_guard lock(lookup->mutex);
  if (!lookup->wanted) return;
  boost::asio::post(lookup->executor, [lookup, addresses = std::move(addresses)]() mutable {
    if (!lookup->wanted) return;
    const auto handler = std::move(lookup->handler);
    handler(std::move(addresses));
  });
}

class ResolveHandle {
 public:
  explicit ResolveHandle(std::shared_ptr<Lookup> lookup) : lookup_(std::move(lookup)) {}
  ResolveHandle(const ResolveHandle&) = delete;
  ResolveHandle& operator=(const ResolveHandle&) = delete;
  ~ResolveHandle() {
    const std::lock_guard lock(lookup_->mutex);
    lookup_->wanted = false;
    lookup_->executor = {};
    lookup_->handler = nullptr;  // Else the thread might be the one to destroy what it captures.
  }

 private:
  const std::shared_ptr<Lookup> lookup_;
};

void start_thread(const std::shared_ptr<Lookup>& lookup, const std::string& host) {
  try {
    own_thread("resolve", [lookup, host] { deliver(lookup, resolve(host)); }).detach();
  } catch (const std::system_error& error) {
    deliver(lookup, Failure{error.code(), "starting a thread to resolve host '" + host + "'"});
  }
}

}  // namespace

std::shared_ptr<void> async_resolve(const boost::asio::any_io_executor& executor,
                                    const std::string& host,
                                    std::function<void(Result<Addresses>)> handler) {
  const auto lookup = std::make_shared<Lookup>();
  lookup->executor = executor;
  lookup->handler = std::move(handler);
  auto handle = std::make_shared<ResolveHandle>(lookup);
  boost::system::error_code not_numeric;
  const auto numeric = boost::asio::ip::make_address(host, not_numeric);
  if (!not_numeric) {
    deliver(lookup, Addresses{numeric});
  } else {
    start_thread(lookup, host);
  }
  return handle;
}

namespace {

using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using OnLink = std::function<void(Result<std::shared_ptr<Link>>)>;

// An address that swallows packets must not cost the next one its chance: that one is tried beside
// it from then on (RFC 8305).
constexpr Milliseconds kNextAfter{300};

class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(boost::asio::io_context& io, ConnectOptions options, OnLink handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        deadline_(Clock::now() + options_.timeout),
        timer_(io) {}

  void start();
  void forget();  // Cancels; the handler is not called.

 private:
  void cancel();
  void wait_at_most(Milliseconds limit, const Failure& or_else);
  void take_addresses(Result<Addresses> addresses);
  using Try = std::shared_ptr<tcp::socket>;
  void try_next();
  void watch_time();
  void check_connected(const Try& one);
  void connected(const Try& one);
  void shake_hands(const Try& one);
  void take_handshake(Result<Connected> connected);
  void fail_address(Failure why);
  void finish(Result<std::shared_ptr<Link>> result);
  Milliseconds time_left() const;
  Milliseconds time_for_this_address() const;
  std::string where() const { return options_.host + ":" + std::to_string(options_.port); }

  const ConnectOptions options_;
  OnLink handler_;
  const TimePoint deadline_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> lookup_;
  Addresses addresses_;
  std::size_t next_ = 0;    // Of addresses_.
  std::vector<Try> tries_;  // That are being connected.
  std::deque<Try> ready_;   // Connected, while the handshake with another goes on.
  std::shared_ptr<Handshake> handshake_;
  Failure last_failure_;
  bool over_ = false;
};

void Attempt::start() {
  wait_at_most(options_.timeout,
               {Errc::kNotFound, "cannot resolve host '" + options_.host + "' (no answer within " +
                                     std::to_string(options_.timeout.count()) + " ms)"});
  lookup_ = async_resolve(timer_.get_executor(), options_.host,
                          [weak = weak_from_this()](Result<Addresses> addresses) {
                            const auto self = weak.lock();
                            if (self && !self->over_) self->take_addresses(std::move(addresses));
                          });
}

void Attempt::cancel() {
  over_ = true;
  timer_.cancel();
  lookup_.reset();
  // Each holds the other, so that this has to be let go.
  if (const auto handshake = std::move(handshake_)) handshake->cancel();
  boost::system::error_code ignored;
  for (const Try& one : tries_) one->close(ignored);
  tries_.clear();
  ready_.clear();
}

void Attempt::forget() {
  cancel();
  handler_ = nullptr;
}

// Replaces the limit that ran before.
void Attempt::wait_at_most(Milliseconds limit, const Failure& or_else) {
  timer_.expires_after(limit);
  timer_.async_wait([self = shared_from_this(), or_else](boost::system::error_code error) {
    if (!error && !self->over_) self->fail_address(or_else);
  });
}

void Attempt::take_addresses(Result<Addresses> addresses) {
  if (!addresses) return finish(addresses.error());
  addresses_ = std::move(*addresses);
  last_failure_ = {Errc::kNotFound, "cannot resolve host '" + options_.host + "' (no address)"};
  addresses_.empty() ? finish(last_failure_) : try_next();
}

Milliseconds Attempt::time_left() const {
  const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now());
  return std::max(left, Milliseconds(0));
}

// For a handshake: what else there is to try needs its time, too.
Milliseconds Attempt::time_for_this_address() const {
  const std::size_t others = addresses_.size() - next_ + tries_.size() + ready_.size();
  return time_left() / static_cast<int>(others + 1);
}

void Attempt::try_next() {
  DDPRUN_ASSERT(next_ < addresses_.size());
  const tcp::endpoint endpoint(addresses_[next_++], options_.port);
  Result<UniqueFd> fd = client_socket(endpoint.address());
  if (!fd) return fail_address(fd.error());
  const int raw = fd->get();
  tune_socket(raw, options_.link.user_timeout);
  const auto one = std::make_shared<tcp::socket>(timer_.get_executor());
  one->assign(endpoint.protocol(), fd->release());
  if (::connect(raw, endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0) {
    return connected(one);
  }
  if (errno != EINPROGRESS) return fail_address(errno_failure("connecting to " + where()));
  tries_.push_back(one);
  one->async_wait(tcp::socket::wait_write,
                  [self = shared_from_this(), one](boost::system::error_code error) {
                    if (!error && !self->over_) self->check_connected(one);
                  });
  watch_time();
}

// Until the next address is tried beside those that do not answer, or the time is over.
void Attempt::watch_time() {
  const Milliseconds left = time_left();
  if (next_ == addresses_.size() || left <= kNextAfter) {
    return wait_at_most(left, {make_error_code(boost::asio::error::timed_out),
                               "connecting to " + where() + ": no answer within " +
                                   std::to_string(left.count()) + " ms"});
  }
  timer_.expires_after(kNextAfter);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && !self->over_) self->try_next();
  });
}

void Attempt::check_connected(const Try& one) {
  if (std::erase(tries_, one) == 0) return;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(one->native_handle(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return connected(one);
  fail_address({{error, std::system_category()}, "connecting to " + where()});
}

void Attempt::connected(const Try& one) {
  if (handshake_) return ready_.push_back(one);
  shake_hands(one);
}

void Attempt::shake_hands(const Try& one) {
  timer_.cancel();
  const int fd = one->native_handle();
  std::unique_ptr<Channel> channel;
  if (options_.token.empty()) {
    channel = make_plain_client(fd);
  } else {
    const Result<TlsContext> context = make_tls_context(TlsRole::kClient, options_.token);
    if (!context) return finish(context.error());
    channel = make_tls_channel(fd, *context, TlsRole::kClient);
  }
  handshake_ = Handshake::start({std::move(*one), std::move(channel)}, time_for_this_address(),
                                [self = shared_from_this()](Result<Connected> connected) {
                                  if (!self->over_) self->take_handshake(std::move(connected));
                                });
}

void Attempt::take_handshake(Result<Connected> connected) {
  handshake_.reset();
  if (connected) return finish(Link::make(std::move(*connected), options_.link));
  const Failure& why = connected.error();
  Failure failure{why.code, "connecting to " + where() + ": " + why.context};
  if (why.code == Errc::kBadToken) {
    failure.context += "; give both sides the same token, or both none";
    return finish(
        std::move(failure));  // Another address of the same daemon will not know it either.
  }
  if (why.code != Errc::kPeerSilent) failure.context += "; is it a ddprun daemon?";
  fail_address(std::move(failure));
}

void Attempt::fail_address(Failure why) {
  last_failure_ = std::move(why);
  if (addresses_.empty() || time_left() == Milliseconds(0)) return finish(last_failure_);
  if (handshake_) return;
  if (!ready_.empty()) {
    const Try one = ready_.front();
    ready_.pop_front();
    return shake_hands(one);
  }
  if (next_ < addresses_.size()) return try_next();
  tries_.empty() ? finish(last_failure_) : watch_time();
}

void Attempt::finish(Result<std::shared_ptr<Link>> result) {
  cancel();
  const OnLink handler = std::move(handler_);
  handler(std::move(result));
}

class ConnectHandle {
 public:
  explicit ConnectHandle(std::shared_ptr<Attempt> attempt) : attempt_(std::move(attempt)) {}
  ConnectHandle(const ConnectHandle&) = delete;
  ConnectHandle& operator=(const ConnectHandle&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): cancelling throws only if memory is out.
  ~ConnectHandle() { attempt_->forget(); }

 private:
  const std::shared_ptr<Attempt> attempt_;
};

}  // namespace

std::shared_ptr<void> async_connect(boost::asio::io_context& io, ConnectOptions options,
                                    OnLink handler) {
  const auto attempt = std::make_shared<Attempt>(io, std::move(options), std::move(handler));
  attempt->start();
  return std::make_shared<ConnectHandle>(attempt);
}

}  // namespace ddprun::rendezvous
