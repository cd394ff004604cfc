#include "rendezvous/etcd/etcd_client.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"
#include "rendezvous/net/connect.h"

namespace ddprun::rendezvous {
namespace {

namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Handler = std::function<void(Result<std::string>)>;

Result<EtcdEndpoint> parse_endpoint(std::string_view url) {
  const Failure failure{Errc::kBadOption,
                        "--etcd '" + std::string(url) +
                            "': give http://HOST:PORT or https://HOST:PORT, several with commas"};
  const std::size_t scheme = url.find("://");
  if (scheme == url.npos) return failure;
  EtcdEndpoint endpoint;
  endpoint.tls = url.substr(0, scheme) == "https";
  if (!endpoint.tls && url.substr(0, scheme) != "http") return failure;
  url.remove_prefix(scheme + 3);
  if (url.ends_with('/')) url.remove_suffix(1);
  std::string_view port;
  const bool brackets = url.starts_with('[');
  const std::size_t close = brackets ? url.find(']') : url.find(':');
  endpoint.host = brackets ? url.substr(1, close - 1) : url.substr(0, close);
  if (brackets && close == url.npos) return failure;
  if (close != url.npos) port = url.substr(close + (brackets ? 1 : 0));
  if (port.starts_with(':')) {
    port.remove_prefix(1);
    const auto number = as_number<decltype(endpoint.port)>(port);
    if (!number) return failure;
    endpoint.port = *number;
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
  Call(boost::asio::io_context& io, EtcdEndpoint endpoint, EtcdTrust trust)
      : endpoint_(std::move(endpoint)),
        trust_(std::move(trust)),
        stream_(io, *trust_),
        socket_(stream_.next_layer()),
        timer_(io) {}

  void post(const etcd::Request& request, const std::string& login, Milliseconds limit,
            Handler handler);
  void forget();
  void abandon();  // The caller is gone.
  bool usable() const { return socket_.is_open(); }
  bool busy() const { return handler_ != nullptr; }

 private:
  void connect(Result<Addresses> addresses);
  void shake_hands();
  void write();
  void read();
  void take_answer();
  void fail(const ErrorCode& code, const std::string& what);
  void finish(Result<std::string> result);
  std::string where() const {
    return std::string(endpoint_.tls ? "https://" : "http://") + endpoint_.host + ":" +
           std::to_string(endpoint_.port) + std::string(request_.target());
  }

  const EtcdEndpoint endpoint_;
  const EtcdTrust trust_;
  ssl::stream<tcp::socket> stream_;
  tcp::socket& socket_;  // What stream_ is over; without TLS all there is.
  boost::asio::steady_timer timer_;
  std::shared_ptr<void> lookup_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::string_body>> parser_;
  boost::beast::flat_buffer buffer_;
  Handler handler_;
};

void EtcdClient::Call::post(const etcd::Request& request, const std::string& login,
                            Milliseconds limit, Handler handler) {
  handler_ = std::move(handler);
  request_ = {http::verb::post, request.path, 11, request.body};
  request_.set(http::field::host, endpoint_.host);
  request_.set(http::field::content_type, "application/json");
  if (!login.empty()) request_.set(http::field::authorization, login);
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
                          if (self->endpoint_.tls) return self->shake_hands();
                          self->write();
                        });
}

void EtcdClient::Call::shake_hands() {
  stream_.set_verify_mode(ssl::verify_peer);
  stream_.set_verify_callback(ssl::host_name_verification(endpoint_.host));
  ErrorCode is_name;
  boost::asio::ip::make_address(endpoint_.host, is_name);
  if (is_name) SSL_set_tlsext_host_name(stream_.native_handle(), endpoint_.host.c_str());
  stream_.async_handshake(ssl::stream_base::client,
                          [self = shared_from_this()](const ErrorCode& error) {
                            if (error) return self->fail(error, "checking its certificate");
                            self->write();
                          });
}

void EtcdClient::Call::write() {
  const auto written = [self = shared_from_this()](const ErrorCode& error, std::size_t) {
    if (error) return self->fail(error, "sending");
    self->read();
  };
  if (endpoint_.tls) return http::async_write(stream_, request_, written);
  http::async_write(socket_, request_, written);
}

void EtcdClient::Call::read() {
  parser_.emplace();
  parser_->body_limit(kAnswerBytesMax);
  const auto done = [self = shared_from_this()](const ErrorCode& error, std::size_t) {
    if (error) return self->fail(error, "reading the answer");
    self->take_answer();
  };
  if (endpoint_.tls) return http::async_read(stream_, buffer_, *parser_, done);
  http::async_read(socket_, buffer_, *parser_, done);
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

namespace {

Failure unreadable(const std::string& option_and_file, const std::string& what,
                   const ErrorCode& error) {
  return {Errc::kBadOption,
          option_and_file + ": no " + what + " can be read there (" + error.message() + ")"};
}

// A key with a passphrase is refused: there is no person to type it.
Result<void> show_certificate(ssl::context& trust, const EtcdTlsFiles& files) {
  ErrorCode error;
  trust.use_certificate_chain_file(files.cert, error);
  if (error) return unreadable("--etcd-cert " + files.cert, "certificate", error);
  trust.set_password_callback([](std::size_t, ssl::context::password_purpose) { return ""; });
  trust.use_private_key_file(files.key, ssl::context::pem, error);
  // OpenSSL checks here already whether the two belong together.
  const auto code = static_cast<unsigned long>(error.value());
  if (ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH) {
    return Failure{Errc::kBadOption,
                   "--etcd-key " + files.key + " is not the key of --etcd-cert " + files.cert};
  }
  if (error) {
    return unreadable("--etcd-key " + files.key, "private key without a passphrase", error);
  }
  return {};
}

}  // namespace

Result<EtcdTrust> make_etcd_trust(const EtcdTlsFiles& files) {
  DDPRUN_ASSERT(files.cert.empty() == files.key.empty());
  auto trust = std::make_shared<ssl::context>(ssl::context::tls_client);
  trust->set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  ErrorCode error;
  files.ca.empty() ? trust->set_default_verify_paths(error)
                   : trust->load_verify_file(files.ca, error);
  if (error) return unreadable("--etcd-ca " + files.ca, "certificate", error);
  if (files.cert.empty()) return trust;
  if (const auto shown = show_certificate(*trust, files); !shown) return shown.error();
  return trust;
}

EtcdClient::EtcdClient(boost::asio::io_context& io, std::vector<EtcdEndpoint> endpoints,
                       EtcdAccess access)
    : io_(io), endpoints_(std::move(endpoints)), access_(std::move(access)) {
  if (!access_.trust) access_.trust = std::make_shared<ssl::context>(ssl::context::tls_client);
}

EtcdClient::~EtcdClient() {
  if (call_) call_->abandon();
}

void EtcdClient::post(const etcd::Request& request, Milliseconds limit, Handler handler) {
  if (access_.user.empty() || !login_.empty()) return send(request, limit, std::move(handler));
  log_in([this, request, limit, handler = std::move(handler)](const Result<void>& in) {
    if (!in) return handler(in.error());
    send(request, limit, handler);
  });
}

void EtcdClient::log_in(std::function<void(Result<void>)> then) {
  send(etcd::log_in(access_.user, access_.password), kLoginLimit,
       [this, then = std::move(then)](const Result<std::string>& body) {
         auto login = body ? etcd::read_login(*body) : Result<std::string>(body.error());
         if (!login) return then(login.error());
         login_ = std::move(*login);
         then({});
       });
}

void EtcdClient::send(const etcd::Request& request, Milliseconds limit, Handler handler) {
  DDPRUN_ASSERT(!call_ || !call_->busy());
  if (!call_ || !call_->usable()) {
    call_ = std::make_shared<Call>(io_, endpoints_[which_], access_.trust);
  }
  call_->post(request, login_, limit,
              [this, handler = std::move(handler)](Result<std::string> result) {
                if (!result) which_ = (which_ + 1) % endpoints_.size();
                // It may not know the login any more: the next request logs in again.
                if (!result && result.error().code == Errc::kBadMessage) login_.clear();
                handler(std::move(result));
              });
}

}  // namespace ddprun::rendezvous
