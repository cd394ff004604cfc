#include "rendezvous/relay/relay_thread.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "common/system/log.h"
#include "common/system/signals.h"
#include "common/text/display.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/relay/relay_dial.h"
#include "rendezvous/relay/splice.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr Milliseconds kOwnPortLimit{3'000};
constexpr Milliseconds kDialLimit{12'000};  // The daemon gives up before, with a reason.

// How long a forwarded client waits for its stream: it does not know of it, and cannot try again.
constexpr auto kForwardLimit = std::chrono::seconds(60);  // While the daemon restarts.
constexpr auto kOpenLimit = std::chrono::seconds(5);      // Until the node has opened the port.
constexpr Milliseconds kForwardPause{200};

bool is_repeated(const Failure& failure, Duration since) {
  if (failure.code == Errc::kBadToken) return false;
  return since < (failure.code == Errc::kNotFound ? Duration(kOpenLimit) : Duration(kForwardLimit));
}

bool has_hung_up(int client) {
  pollfd entry{client, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0;
}

// The line for a worker that gets no stream. The daemon's own words come without a code.
std::string refusal_of(const Failure& failure) {
  const bool is_sentence = failure.code == Errc::kNotFound || failure.code == kDialAgain;
  const bool is_final = failure.code == Errc::kNotFound || failure.code == Errc::kBadToken;
  return (is_final ? "no " : "again ") +
         plain_line(is_sentence ? failure.context : to_string(failure)) + "\n";
}

// An agent's end of one stream.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  Meeting(boost::asio::io_context& io, ConnectOptions daemon, Meet meet,
          std::function<void(std::uint64_t)> on_bytes)
      : io_(io),
        daemon_(std::move(daemon)),
        meet_(std::move(meet)),
        on_bytes_(std::move(on_bytes)),
        timer_(io) {}

  // No address: the port is not open to others.
  void start(const std::optional<std::string>& address, std::uint16_t port) {
    if (!address) return fail("port " + std::to_string(port) + " there is none of this run's");
    boost::system::error_code malformed;
    const tcp::endpoint own(boost::asio::ip::make_address(*address, malformed), port);
    auto fd = malformed ? Result<UniqueFd>(Failure{malformed, "reading the address " + *address})
                        : client_socket(own.address());
    if (!fd) return fail(to_string(fd.error()));
    own_ = std::make_unique<tcp::socket>(io_, own.protocol(), fd->release());
    timer_.expires_after(kOwnPortLimit);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error && self->own_) self->own_->cancel();
    });
    own_->async_connect(own, [self = shared_from_this(), port](boost::system::error_code error) {
      self->timer_.cancel();
      if (!error) return self->call();
      const bool is_late = error == boost::asio::error::operation_aborted;
      const std::string limit = std::to_string(kOwnPortLimit.count());
      self->fail("connecting to port " + std::to_string(port) +
                 " there: " + (is_late ? "no answer within " + limit + " ms" : error.message()));
    });
  }

 private:
  void fail(const std::string& why) {
    own_.reset();
    meet_.error = why;
    call();
  }

  void call() {
    relay(io_, daemon_, meet_, [self = shared_from_this()](Result<Released> stream) {
      self->joined(std::move(stream));
    });
  }

  void joined(Result<Released> stream) {
    if (!own_ || !stream) return;  // The daemon has passed the reason on.
    boost::system::error_code ignored;
    splice(io_, std::move(*stream), plain_end(UniqueFd(own_->release(ignored))), on_bytes_);
  }

  boost::asio::io_context& io_;
  const ConnectOptions daemon_;
  Meet meet_;
  const std::function<void(std::uint64_t)> on_bytes_;
  std::unique_ptr<tcp::socket> own_;
  boost::asio::steady_timer timer_;
};

}  // namespace

RelayThread::~RelayThread() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

Result<void> RelayThread::begin() {
  if (thread_.joinable()) return {};
  try {
    thread_ = own_thread("relay", [this] { io_.run(); });
  } catch (const std::system_error& error) {
    return Failure{error.code(), "starting a thread for relayed streams"};
  }
  return {};
}

void RelayThread::join(Released dialer, Released agent, std::shared_ptr<void> slot) {
  if (const auto begun = begin(); !begun) return log::warning(to_string(begun.error()));
  boost::asio::post(io_, [this, dialer = std::move(dialer), agent = std::move(agent),
                          slot = std::move(slot)]() mutable {
    splice(io_, std::move(dialer), std::move(agent),
           [this, slot = std::move(slot)](std::uint64_t bytes) { bytes_ += bytes; });
  });
}

void RelayThread::meet(ConnectOptions daemon, Meet meet, std::uint16_t port) {
  if (const auto begun = begin(); !begun) return log::warning(to_string(begun.error()));
  boost::asio::post(io_, [this, daemon = std::move(daemon), meet = std::move(meet),
                          port]() mutable {
    std::make_shared<Meeting>(io_, std::move(daemon), std::move(meet), [this](std::uint64_t bytes) {
      bytes_ += bytes;
    })->start(ports_.address_of(port), port);
  });
}

void RelayThread::open(std::string purpose, std::string address, std::uint16_t port) {
  boost::asio::post(io_, [this, purpose = std::move(purpose), address = std::move(address), port] {
    opened_[purpose] = ports_.open(address, {port});
  });
}

void RelayThread::shut(std::string purpose) {
  boost::asio::post(io_, [this, purpose = std::move(purpose)] { opened_.erase(purpose); });
}

void RelayThread::use_daemon(ConnectOptions daemon) {
  boost::asio::post(io_, [this, daemon = std::move(daemon)]() mutable {
    daemon_ = std::move(daemon);
    daemon_.timeout = kDialLimit;
  });
}

Result<std::uint16_t> RelayThread::serve_workers(std::string run_id, std::string nonce) {
  if (const auto begun = begin(); !begun) return begun.error();
  auto listening = listen_on_loopback();
  if (!listening) return listening.error();
  const std::uint16_t port = local_port(listening->get());
  boost::asio::post(io_, [this, listening = std::move(*listening), nonce = std::move(nonce),
                          run_id = std::move(run_id)]() mutable {
    run_id_ = std::move(run_id);
    entry_ = std::make_unique<RelayEntry>(
        io_, std::move(listening), std::move(nonce), ports_,
        [this](int client) { return admits(client); },
        [this](const DialRequest& request, UniqueFd client) { dial(request, std::move(client)); });
  });
  return port;
}

Result<std::uint16_t> RelayThread::forward(NodeId node, std::uint16_t port) {
  if (const auto begun = begin(); !begun) return begun.error();
  auto listening = listen_on_loopback();
  if (!listening) return listening.error();
  const std::uint16_t here = local_port(listening->get());
  boost::asio::post(io_, [this, listening = std::move(*listening),
                          request = DialRequest{std::move(node), port}]() mutable {
    if (forwards_) forwards_->stop();
    const auto take = [this, request](AcceptedSocket one) {
      if (!admits(one.fd.get())) return;
      lead(request, std::make_shared<UniqueFd>(std::move(one.fd)),
           std::chrono::steady_clock::now());
    };
    forwards_ =
        AcceptLoop::start(io_, std::move(listening), take, /*on_short=*/[](const std::string&) {});
  });
  return here;
}

void RelayThread::stop_forwarding() {
  boost::asio::post(io_, [this] {
    if (const auto forwards = std::exchange(forwards_, nullptr)) forwards->stop();
  });
}

// On the thread, as the next.
bool RelayThread::admits(int client) {
  if (for_all_users_) return true;
  const PeerUser user = users_.look_up(client);
  return user == PeerUser::kOurs || user == PeerUser::kUnknown;
}

void RelayThread::dial(const DialRequest& request, UniqueFd client) {
  const auto end = std::make_shared<UniqueFd>(std::move(client));
  const Dial wanted{.run_id = run_id_, .node = request.node, .port = request.port};
  relay(io_, daemon_, wanted, [this, end](Result<Released> stream) {
    if (stream) return carry(std::move(*stream), std::move(*end), "ok\n");
    const std::string why = refusal_of(stream.error());
    (void)::send(end->get(), why.data(), why.size(), MSG_NOSIGNAL);
  });
}

void RelayThread::lead(const DialRequest& request, std::shared_ptr<UniqueFd> client,
                       TimePoint began) {
  const Dial wanted{.run_id = run_id_, .node = request.node, .port = request.port};
  relay(io_, daemon_, wanted, [this, request, client, began](Result<Released> stream) {
    if (stream) return carry(std::move(*stream), std::move(*client), "");
    const Duration since = std::chrono::steady_clock::now() - began;
    if (!is_repeated(stream.error(), since) || has_hung_up(client->get())) return;
    const auto pause = std::make_shared<boost::asio::steady_timer>(io_, kForwardPause);
    pause->async_wait([this, pause, request, client, began](boost::system::error_code error) {
      if (!error) lead(request, client, began);
    });
  });
}

void RelayThread::carry(Released stream, UniqueFd client, const std::string& first) {
  Released worker = plain_end(std::move(client));
  worker.unsent = first;
  splice(io_, std::move(stream), std::move(worker),
         [this](std::uint64_t bytes) { bytes_ += bytes; });
}

}  // namespace ddprun::rendezvous
