#include "rendezvous/daemon/http_server.h"

#include <algorithm>
#include <array>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rendezvous {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::asio::ip::tcp;

constexpr const char* kOtherHost =
    "the request's Host header names another machine: use an IP address, localhost or this "
    "machine's name (a proxy has to send one of them as Host)\n";
constexpr Milliseconds kLinger{1'000};  // For the peer to take the last answer and hang up.

// What every connection needs of the server.
struct Shared {
  HttpOptions options;
  HttpServer::Handler handler;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, std::shared_ptr<const Shared> shared, std::shared_ptr<void> slot)
      : stream_(std::move(socket)),
        buffer_(shared->options.header_bytes_max + shared->options.body_bytes_max),
        shared_(std::move(shared)),
        slot_(std::move(slot)) {}

  void read();

  // Since when it has sent no request; nothing while it is answered.
  std::optional<TimePoint> idle_since() const { return idle_since_; }
  void give_way() { stream_.close(); }

 private:
  void take(beast::error_code error);
  bool is_served() const;
  void refuse(beast::error_code error);
  void send(const HttpReply& reply, bool keep_alive, bool with_body);
  void sent(beast::error_code error, bool keep_alive);
  void linger();

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;  // May hold the beginning of the next request.
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::array<char, 1024> unread_;
  const std::shared_ptr<const Shared> shared_;
  const std::shared_ptr<void> slot_;
  int requests_ = 0;
  std::optional<TimePoint> idle_since_;
};

void Session::read() {
  idle_since_ = std::chrono::steady_clock::now();
  parser_.emplace();
  parser_->header_limit(shared_->options.header_bytes_max);
  parser_->body_limit(shared_->options.body_bytes_max);
  // A point in time, not a pause: a client that sends a byte now and then is cut off too.
  stream_.expires_after(shared_->options.read_timeout);
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](beast::error_code error, std::size_t) { self->take(error); });
}

void Session::take(beast::error_code error) {
  if (error) return refuse(error);
  DDPRUN_ASSERT(parser_ && idle_since_);
  const auto& request = parser_->get();
  const bool head = request.method() == http::verb::head;
  const auto method = head ? std::string_view("GET") : std::string_view(request.method_string());
  const HttpReply reply =
      is_served() ? shared_->handler(method, request.target()) : HttpReply{403, kOtherHost};
  const bool more = ++requests_ < shared_->options.requests_max;
  send(reply, more && request.keep_alive(), !head);
}

// Each Host header counts: clients differ in which of several they mean.
bool Session::is_served() const {
  if (!shared_->options.serves) return true;
  const auto [first, last] = parser_->get().equal_range(http::field::host);
  return std::all_of(first, last,
                     [&](const auto& field) { return shared_->options.serves(field.value()); });
}

// The request could not be read to its end. A client that has left or ran out of time gets no
// answer.
void Session::refuse(beast::error_code error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return send({431, "the request's header is too large\n"}, false, true);
  }
  if (error == http::error::body_limit)
    return send({413, "the request must have no body\n"}, false, true);
  const bool malformed = error.category() == beast::error_code(http::error::bad_method).category();
  if (!malformed || error == http::error::end_of_stream || error == http::error::partial_message) {
    return;
  }
  send({400, "this is not an HTTP request: " + error.message() + "\n"}, false, true);
}

void Session::send(const HttpReply& reply, bool keep_alive, bool with_body) {
  response_ = {static_cast<http::status>(reply.status), 11, reply.body};
  response_.set(http::field::content_type, reply.content_type);
  response_.set(http::field::cache_control, "no-store");
  response_.set("X-Content-Type-Options", "nosniff");
  response_.set("Referrer-Policy", "no-referrer");
  if (!reply.policy.empty()) response_.set("Content-Security-Policy", reply.policy);
  if (reply.status == 405) response_.set(http::field::allow, "GET, HEAD");
  response_.keep_alive(keep_alive);
  response_.prepare_payload();
  serializer_.emplace(response_);
  idle_since_.reset();
  stream_.expires_after(shared_->options.write_timeout);
  const auto done = [self = shared_from_this(), keep_alive](beast::error_code error, std::size_t) {
    self->sent(error, keep_alive);
  };
  if (with_body) {
    http::async_write(stream_, *serializer_, done);
  } else {
    http::async_write_header(stream_, *serializer_, done);
  }
}

void Session::sent(beast::error_code error, bool keep_alive) {
  DDPRUN_ASSERT(serializer_ && !idle_since_);
  if (error) return;
  if (keep_alive) return read();
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLinger);
  idle_since_ = std::chrono::steady_clock::now();
  linger();
}

// Closing on bytes that were not read would reset the connection, and the answer be lost.
void Session::linger() {
  stream_.async_read_some(boost::asio::buffer(unread_),
                          [self = shared_from_this()](beast::error_code error, std::size_t) {
                            if (!error) self->linger();
                          });
}

}  // namespace

class HttpServer::Core : public std::enable_shared_from_this<HttpServer::Core> {
 public:
  Core(boost::asio::io_context& io, HttpOptions options, Handler handler)
      : io_(io),
        shared_(std::make_shared<Shared>(Shared{std::move(options), std::move(handler)})) {}

  void start(UniqueFd listening) {
    port = local_port(listening.get());
    accept_loop_ = AcceptLoop::start(io_, std::move(listening),
                                     [weak = weak_from_this()](AcceptedSocket socket) {
                                       if (const auto core = weak.lock())
                                         core->take(std::move(socket));
                                     });
  }
  void close() { accept_loop_->stop(); }
  std::size_t connection_count() const { return static_cast<std::size_t>(slot_.use_count()) - 1; }

  std::uint16_t port = 0;

 private:
  void take(AcceptedSocket accepted) {
    std::erase_if(sessions_, [](const auto& session) { return session.expired(); });
    if (sessions_.size() >= shared_->options.connections_max && !make_room()) return;
    const auto protocol = accepted.local.is_v6() ? tcp::v6() : tcp::v4();
    tcp::socket socket(io_, protocol, accepted.fd.release());
    const auto session = std::make_shared<Session>(std::move(socket), shared_, slot_);
    sessions_.push_back(session);
    session->read();
  }

  // Closes the connection that has been silent for longest, so that a crowd of idle connections
  // cannot keep a probe out.
  bool make_room() {
    auto oldest = sessions_.end();
    TimePoint since = TimePoint::max();
    for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
      const auto idle = it->lock()->idle_since();
      if (!idle || *idle >= since) continue;
      oldest = it;
      since = *idle;
    }
    if (oldest == sessions_.end()) return false;
    oldest->lock()->give_way();
    sessions_.erase(oldest);
    return true;
  }

  boost::asio::io_context& io_;
  const std::shared_ptr<const Shared> shared_;
  std::shared_ptr<AcceptLoop> accept_loop_;
  std::vector<std::weak_ptr<Session>> sessions_;
  std::shared_ptr<int> slot_ = std::make_shared<int>();  // Each connection holds it too.
};

Result<std::unique_ptr<HttpServer>> HttpServer::open(boost::asio::io_context& io,
                                                     HttpOptions options, Handler handler) {
  Result<UniqueFd> listening = listen_socket(options.address, options.port);
  if (!listening) return listening.error();
  auto core = std::make_shared<Core>(io, std::move(options), std::move(handler));
  core->start(std::move(*listening));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::~HttpServer() { core_->close(); }
std::uint16_t HttpServer::port() const { return core_->port; }
std::size_t HttpServer::connection_count() const { return core_->connection_count(); }

}  // namespace ddprun::rendezvous
