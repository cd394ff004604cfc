#include "rendezvous/etcd/etcd_client.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/assert.h"
#include "rendezvous/net/connect.h"

namespace ddprun::rendezvous::etcd {
namespace {

using nlohmann::json;

constexpr int kManifestFormat = 1;
constexpr std::size_t kLoginBytesMax = 8192;  // A JWT has some hundred.
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

Failure bad(const std::string& what) {
  return {Errc::kBadMessage, "reading etcd's answer: " + what};
}

// The answer's object; what etcd complains of is a failure.
Result<json> parse(std::string_view body) {
  json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("it is not a JSON object");
  const auto error = object.find("error");
  if (error == object.end()) return object;
  std::string text = error->is_string() ? error->get<std::string>() : error->dump();
  return Failure{Errc::kBadMessage, "etcd says: " + text.substr(0, 200)};
}

// Absent means 0, as everywhere in this format. etcd writes 64-bit numbers as strings.
std::optional<std::int64_t> number(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return 0;
  if (it->is_number_integer()) return it->get<std::int64_t>();
  if (!it->is_string()) return std::nullopt;
  const auto& text = it->get_ref<const std::string&>();
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<std::string> bytes(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return std::string();
  if (!it->is_string()) return std::nullopt;
  auto decoded = from_base64(it->get_ref<const std::string&>());
  if (!decoded) return std::nullopt;
  return std::move(*decoded);
}

bool flag(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

json created_by(const std::string& key, std::int64_t revision) {
  return {{"key", base64(key)},
          {"target", "CREATE"},
          {"result", "EQUAL"},
          {"create_revision", std::to_string(revision)}};
}

}  // namespace

std::string base64(std::string_view input) {
  std::string text;
  text.reserve((input.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < input.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t n = std::min<std::size_t>(3, input.size() - i);
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < n ? static_cast<unsigned char>(input[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= n ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

Result<std::string> from_base64(std::string_view text) {
  const Failure failure = bad("a text is not base64");
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return failure;
  std::string output;
  output.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t group = 0;
  int bits = 0;
  for (const char letter : text) {
    const auto* const end = kDigits + 64;
    const auto* const at = std::find(kDigits, end, letter);
    if (at == end) return failure;
    group = group << 6 | static_cast<std::uint32_t>(at - kDigits);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    output += static_cast<char>(group >> bits & 0xff);
  }
  return output;
}

std::string sortable(std::int64_t number) {
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; number >>= 4) {
    text[i] = "0123456789abcdef"[number & 15];
  }
  return text;
}

Request log_in(const std::string& user, const std::string& password) {
  // What is no UTF-8 cannot be said in JSON; etcd will refuse what comes instead.
  return {"/v3/auth/authenticate", json{{"name", user}, {"password", password}}.dump(
                                       -1, ' ', false, json::error_handler_t::replace)};
}

Request grant_lease(std::int64_t seconds) {
  return {"/v3/lease/grant", json{{"TTL", std::to_string(seconds)}}.dump()};
}

Request renew_lease(std::int64_t lease) {
  return {"/v3/lease/keepalive", json{{"ID", std::to_string(lease)}}.dump()};
}

Request revoke_lease(std::int64_t lease) {
  return {"/v3/lease/revoke", json{{"ID", std::to_string(lease)}}.dump()};
}

Request get(const std::string& key) { return {"/v3/kv/range", json{{"key", base64(key)}}.dump()}; }

Request get_range(const std::string& first, const std::string& end, int limit) {
  return {"/v3/kv/range",
          json{{"key", base64(first)}, {"range_end", base64(end)}, {"limit", std::to_string(limit)}}
              .dump()};
}

Request create(const std::string& key, const std::string& value, std::int64_t lease) {
  const json put = {
      {"key", base64(key)}, {"value", base64(value)}, {"lease", std::to_string(lease)}};
  const json body = {{"compare", json::array({created_by(key, 0)})},
                     {"success", json::array({json{{"request_put", put}}})}};
  return {"/v3/kv/txn", body.dump()};
}

Request write_if(const std::string& guard, std::int64_t term, const std::vector<Put>& puts,
                 const std::vector<DeleteRange>& deletes) {
  json operations = json::array();
  for (const DeleteRange& range : deletes) {
    operations.push_back({{"request_delete_range",
                           {{"key", base64(range.first)}, {"range_end", base64(range.end)}}}});
  }
  for (const Put& put : puts) {
    operations.push_back(
        {{"request_put", {{"key", base64(put.key)}, {"value", base64(put.value)}}}});
  }
  const json body = {{"compare", json::array({created_by(guard, term)})},
                     {"success", std::move(operations)}};
  return {"/v3/kv/txn", body.dump()};
}

Result<std::string> read_login(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  const auto token = object->find("token");
  if (token == object->end() || !token->is_string()) return bad("there is no token in it");
  const auto& text = token->get_ref<const std::string&>();
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (text.empty() || text.size() > kLoginBytesMax || !printable) return bad("its token is none");
  return text;
}

Result<Lease> read_lease(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  // The gateway wraps the answers of a stream, of which a renewal is one.
  const auto result = object->find("result");
  const json& answer = result != object->end() && result->is_object() ? *result : *object;
  const auto id = number(answer, "ID");
  const auto ttl = number(answer, "TTL");
  if (!id || !ttl || *ttl < 0 || *ttl > 86'400) return bad("a lease is invalid");
  return Lease{*id, *ttl};
}

Result<Range> read_range(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  Range range;
  range.more = flag(*object, "more");
  const auto list = object->find("kvs");
  if (list == object->end()) return range;
  if (!list->is_array()) return bad("'kvs' is not a list");
  for (const json& item : *list) {
    if (!item.is_object()) return bad("a key is not an object");
    auto key = bytes(item, "key");
    auto value = bytes(item, "value");
    const auto revision = number(item, "create_revision");
    if (!key || !value || !revision) return bad("a key is invalid");
    range.found.push_back({std::move(*key), std::move(*value), *revision});
  }
  return range;
}

Result<Outcome> read_outcome(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  const auto header = object->find("header");
  if (header == object->end() || !header->is_object()) return bad("it has no header");
  const auto revision = number(*header, "revision");
  if (!revision || *revision <= 0) return bad("its revision is invalid");
  return Outcome{flag(*object, "succeeded"), *revision};
}

std::string manifest_text(const JournalStart& manifest) {
  return json{{"format", kManifestFormat}, {"term", manifest.term}, {"first", manifest.first}}
      .dump();
}

Result<JournalStart> read_manifest(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("the journal's manifest is not a JSON object");
  if (number(object, "format") != kManifestFormat) {
    return Failure{Errc::kBadMessage,
                   "the journal in etcd was written by another version of ddprun-rendezvous; start "
                   "that one again, or give another --etcd-prefix"};
  }
  const auto term = number(object, "term");
  const auto first = number(object, "first");
  if (!term || !first || *term < 0 || *first < 0 || *term == INT64_MAX) {
    return bad("the journal's manifest is invalid");
  }
  return JournalStart{*term, *first};
}

}  // namespace ddprun::rendezvous::etcd

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
  Call(boost::asio::io_context& io, EtcdEndpoint endpoint, EtcdTrust trust)
      : endpoint_(std::move(endpoint)),
        trust_(std::move(trust)),
        stream_(io, *trust_),
        socket_(stream_.next_layer()),
        timer_(io) {}

  void post(const etcd::Request& request, const std::string& login, Milliseconds limit,
            Handler handler);
  void forget();
  void abandon();  // Whoever asked is gone.
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

// A key with a passphrase is refused: nobody sits there to type it.
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
