#include "rendezvous/etcd_client.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "common/assert.h"
#include "rendezvous/resolve.h"

namespace ddprun::rendezvous {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Handler = std::function<void(Result<std::string>)>;

Result<EtcdEndpoint> parse_endpoint(std::string_view url) {
  const Failure failure{Errc::kBadOption, "--etcd '" + std::string(url) +
                                              "': give http://HOST:PORT, several with commas"};
  if (url.starts_with("https://")) {
    return Failure{Errc::kBadOption,
                   "--etcd '" + std::string(url) +
                       "': https is not supported; use http:// to a local etcd proxy or tunnel"};
  }
  if (!url.starts_with("http://")) return failure;
  url.remove_prefix(7);
  if (url.ends_with('/')) url.remove_suffix(1);
  EtcdEndpoint endpoint;
  std::string_view port;
  const bool brackets = url.starts_with('[');
  const std::size_t close = brackets ? url.find(']') : url.find(':');
  endpoint.host = brackets ? url.substr(1, close - 1) : url.substr(0, close);
  if (brackets && close == url.npos) return failure;
  if (close != url.npos) port = url.substr(close + (brackets ? 1 : 0));
  if (port.starts_with(':')) {
    port.remove_prefix(1);
    const auto [stop, error] =
        std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
    if (error != std::errc{} || stop != port.data() + port.size()) return failure;
  } else if (!port.empty()) {
    return failure;
  }
  if (endpoint.host.empty() || endpoint.host.find_first_of("/@?# ") != url.npos) return failure;
  return endpoint;
}

}  // namespace

Result<std::vector<EtcdEndpoint>> parse_etcd_endpoints(std::string_view text) {
  std::vector<EtcdEndpoint> endpoints;
  for (;;) {
    const std::size_t comma = text.find(',');
    auto endpoint = parse_endpoint(text.substr(0, comma));
    if (!endpoint) return endpoint.error();
    endpoints.push_back(std::move(*endpoint));
    if (comma == text.npos) return endpoints;
    text.remove_prefix(comma + 1);
  }
}

// One connection, and the request that is under way on it.
class EtcdClient::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(boost::asio::io_context& io, EtcdEndpoint endpoint)
      : endpoint_(std::move(endpoint)), socket_(io), timer_(io) {}

  void post(const etcd::Request& request, Milliseconds limit, Handler handler);
  void forget();
  void abandon();  // Whoever asked is gone.
  bool usable() const { return socket_.is_open(); }
  bool busy() const { return handler_ != nullptr; }

 private:
  void connect(Result<Addresses> addresses);
  void write();
  void read();
  void take_answer();
  void fail(const ErrorCode& code, const std::string& what);
  void finish(Result<std::string> result);
  std::string where() const {
    return "http://" + endpoint_.host + ":" + std::to_string(endpoint_.port) +
           std::string(request_.target());
  }

  const EtcdEndpoint endpoint_;
  tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> lookup_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::string_body>> parser_;
  boost::beast::flat_buffer buffer_;
  Handler handler_;
};

void EtcdClient::Call::post(const etcd::Request& request, Milliseconds limit, Handler handler) {
  handler_ = std::move(handler);
  request_ = {http::verb::post, request.path, 11, request.body};
  request_.set(http::field::host, endpoint_.host);
  request_.set(http::field::content_type, "application/json");
  request_.prepare_payload();
  timer_.expires_after(limit);
  timer_.async_wait([self = shared_from_this(), limit](const ErrorCode& error) {
    if (error) return;
    self->fail(make_error_code(Errc::kPeerSilent),
               "no answer within " + std::to_string(limit.count()) + " ms");
  });
  if (socket_.is_open()) return write();
  lookup_ = async_resolve(socket_.get_executor(), endpoint_.host,
                          [weak = weak_from_this()](Result<Addresses> addresses) {
                            if (const auto self = weak.lock()) self->connect(std::move(addresses));
                          });
}

void EtcdClient::Call::connect(Result<Addresses> addresses) {
  if (!busy()) return;
  if (!addresses || addresses->empty()) {
    return fail(make_error_code(Errc::kNotFound), "cannot resolve the host");
  }
  // The next endpoint is as good as this one's next address.
  socket_.async_connect({addresses->front(), endpoint_.port},
                        [self = shared_from_this()](const ErrorCode& error) {
                          if (error) return self->fail(error, "connecting");
                          ErrorCode ignored;
                          self->socket_.set_option(tcp::no_delay(true), ignored);
                          self->write();
                        });
}

void EtcdClient::Call::write() {
  http::async_write(socket_, request_,
                    [self = shared_from_this()](const ErrorCode& error, std::size_t) {
                      if (error) return self->fail(error, "sending");
                      self->read();
                    });
}

void EtcdClient::Call::read() {
  parser_.emplace();
  parser_->body_limit(kAnswerBytesMax);
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](const ErrorCode& error, std::size_t) {
                     if (error) return self->fail(error, "reading the answer");
                     self->take_answer();
                   });
}

void EtcdClient::Call::take_answer() {
  if (!busy()) return;
  auto answer = parser_->release();
  if (answer.result() != http::status::ok) {
    return fail(
        make_error_code(Errc::kBadMessage),
        "status " + std::to_string(answer.result_int()) + ": " + answer.body().substr(0, 200));
  }
  if (!answer.keep_alive()) forget();
  finish(std::move(answer.body()));
}

void EtcdClient::Call::fail(const ErrorCode& code, const std::string& what) {
  if (!busy()) return;
  forget();
  finish(Failure{code, what + " (" + where() + ")"});
}

void EtcdClient::Call::finish(Result<std::string> result) {
  timer_.cancel();
  std::exchange(handler_, nullptr)(std::move(result));
}

void EtcdClient::Call::forget() {
  timer_.cancel();
  lookup_.reset();
  ErrorCode ignored;
  socket_.close(ignored);
}

void EtcdClient::Call::abandon() {
  handler_ = nullptr;
  forget();
}

EtcdClient::EtcdClient(boost::asio::io_context& io, std::vector<EtcdEndpoint> endpoints)
    : io_(io), endpoints_(std::move(endpoints)) {}

EtcdClient::~EtcdClient() {
  if (call_) call_->abandon();
}

void EtcdClient::post(const etcd::Request& request, Milliseconds limit, Handler handler) {
  DDPRUN_ASSERT(!call_ || !call_->busy());
  if (!call_ || !call_->usable()) call_ = std::make_shared<Call>(io_, endpoints_[which_]);
  call_->post(request, limit, [this, handler = std::move(handler)](Result<std::string> result) {
    if (!result) which_ = (which_ + 1) % endpoints_.size();
    handler(std::move(result));
  });
}

}  // namespace ddprun::rendezvous
