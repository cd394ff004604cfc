#include "rendezvous/relay/relay_dial.h"

#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "rendezvous/relay/splice.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

// Ends what it holds when it is let go, unless that has ended by itself.
template <class Task>
class RelayHandle {
 public:
  explicit RelayHandle(std::shared_ptr<Task> task) : task_(std::move(task)) {}
  RelayHandle(const RelayHandle&) = delete;
  RelayHandle& operator=(const RelayHandle&) = delete;
  ~RelayHandle() { task_->forget(); }

 private:
  const std::shared_ptr<Task> task_;
};

class Relaying : public std::enable_shared_from_this<Relaying> {
 public:
  Relaying(boost::asio::io_context& io, ConnectOptions daemon, const RelayRequest& request,
           std::function<void(Result<Released>)> handler)
      : io_(io),
        daemon_(std::move(daemon)),
        request_(encode(request)),
        handler_(std::move(handler)),
        timer_(io) {}

  // `owner`: this task, if nothing else keeps it.
  void start(std::shared_ptr<Relaying> owner) {
    timer_.expires_after(daemon_.timeout);
    timer_.async_wait([weak = weak_from_this(), owner](boost::system::error_code error) {
      const auto self = weak.lock();
      if (self && !error) self->finish(self->silence());
    });
    attempt_ =
        async_connect(io_, daemon_, [weak = weak_from_this()](Result<std::shared_ptr<Link>> link) {
          if (const auto self = weak.lock()) self->connected(std::move(link));
        });
  }

  void forget() {
    handler_ = nullptr;
    end();
  }

 private:
  Failure silence() const {
    return {Errc::kPeerSilent, "the daemon at " + daemon_.host + ":" +
                                   std::to_string(daemon_.port) +
                                   " has not joined a stream within " +
                                   std::to_string(daemon_.timeout.count()) + " ms"};
  }

  void connected(Result<std::shared_ptr<Link>> link) {
    if (!link) return finish(link.error());
    link_ = std::move(*link);
    link_->start({
        .on_message =
            [weak = weak_from_this()](const std::string& body) {
              if (const auto self = weak.lock()) self->receive(body);
            },
        .on_closed =
            [weak = weak_from_this()](const Failure& why) {
              if (const auto self = weak.lock()) self->finish(why);
            },
    });
    link_->send(request_);
  }

  void receive(const std::string& body) {
    const auto joined = decode_joined(body);
    if (!joined) return finish(joined.error());
    if (!joined->error.empty()) {
      return finish(
          Failure{joined->again ? kDialAgain : make_error_code(Errc::kNotFound), joined->error});
    }
    Released released = link_->release();
    link_.reset();
    finish(std::move(released));
  }

  void finish(Result<Released> result) {
    const auto handler = std::exchange(handler_, nullptr);
    end();
    if (handler) handler(std::move(result));
  }

  void end() {
    timer_.cancel();
    attempt_.reset();
    if (link_) std::exchange(link_, nullptr)->close();
  }

  boost::asio::io_context& io_;
  const ConnectOptions daemon_;
  const std::string request_;
  std::function<void(Result<Released>)> handler_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> attempt_;
  std::shared_ptr<Link> link_;
};

}  // namespace

std::shared_ptr<void> async_relay(boost::asio::io_context& io, ConnectOptions daemon,
                                  const RelayRequest& request,
                                  std::function<void(Result<Released>)> handler) {
  auto task = std::make_shared<Relaying>(io, std::move(daemon), request, std::move(handler));
  task->start(nullptr);
  return std::make_shared<RelayHandle<Relaying>>(std::move(task));
}

void relay(boost::asio::io_context& io, ConnectOptions daemon, const RelayRequest& request,
           std::function<void(Result<Released>)> handler) {
  const auto task = std::make_shared<Relaying>(io, std::move(daemon), request, std::move(handler));
  task->start(task);
}

namespace {

class RelayedConnect : public std::enable_shared_from_this<RelayedConnect> {
 public:
  RelayedConnect(boost::asio::io_context& io, ConnectOptions daemon,
                 std::function<void(Result<std::shared_ptr<Link>>)> handler)
      : io_(io), daemon_(std::move(daemon)), handler_(std::move(handler)) {}

  void start(const Dial& dial) {
    relaying_ = async_relay(io_, daemon_, dial, [weak = weak_from_this()](Result<Released> stream) {
      if (const auto self = weak.lock()) self->joined(std::move(stream));
    });
  }

  void forget() {
    handler_ = nullptr;
    relaying_.reset();
    if (const auto handshake = std::move(handshake_)) handshake->cancel();
  }

 private:
  void joined(Result<Released> stream) {
    const auto relaying = std::move(relaying_);
    if (!stream) return finish(stream.error());
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return finish(errno_failure("making a socket pair for a relayed stream"));
    }
    splice(io_, std::move(*stream), plain_end(UniqueFd(ends[1])));
    tcp::socket socket(io_, tcp::v4(), ends[0]);
    std::unique_ptr<Channel> channel;
    if (daemon_.token.empty()) {
      channel = make_plain_client(ends[0]);
    } else {
      const auto context = make_tls_context(TlsRole::kClient, daemon_.token);
      if (!context) return finish(context.error());
      channel = make_tls_channel(ends[0], *context, TlsRole::kClient);
    }
    handshake_ = Handshake::start({std::move(socket), std::move(channel)}, daemon_.timeout,
                                  [weak = weak_from_this()](Result<Connected> connected) {
                                    if (const auto self = weak.lock()) {
                                      self->greeted(std::move(connected));
                                    }
                                  });
  }

  void greeted(Result<Connected> connected) {
    const auto handshake = std::move(handshake_);
    if (!connected) return finish(connected.error());
    finish(Link::make(std::move(*connected), daemon_.link));
  }

  void finish(Result<std::shared_ptr<Link>> result) {
    if (const auto handler = std::exchange(handler_, nullptr)) handler(std::move(result));
  }

  boost::asio::io_context& io_;
  const ConnectOptions daemon_;
  std::function<void(Result<std::shared_ptr<Link>>)> handler_;
  std::shared_ptr<void> relaying_;
  std::shared_ptr<Handshake> handshake_;
};

}  // namespace

std::shared_ptr<void> async_connect_relayed(
    boost::asio::io_context& io, const ConnectOptions& daemon, const Dial& dial,
    std::function<void(Result<std::shared_ptr<Link>>)> handler) {
  auto task = std::make_shared<RelayedConnect>(io, daemon, std::move(handler));
  task->start(dial);
  return std::make_shared<RelayHandle<RelayedConnect>>(std::move(task));
}

}  // namespace ddprun::rendezvous
