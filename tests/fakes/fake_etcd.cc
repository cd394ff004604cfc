#include "tests/fakes/fake_etcd.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <nlohmann/json.hpp>

namespace ddprun::tests {
namespace {

namespace http = boost::beast::http;
using boost::asio::ip::tcp;
using nlohmann::json;
using rendezvous::etcd::base64;

std::string plain(const json& object, const char* name) {
  return rendezvous::etcd::from_base64(object.value(name, "")).value();
}

}  // namespace

struct FakeEtcd::Session : std::enable_shared_from_this<Session> {
  Session(FakeEtcd& owner, tcp::socket connected) : etcd(owner), socket(std::move(connected)) {}
  void read() {
    parser.emplace();
    parser->body_limit(std::size_t{64} << 20);
    http::async_read(socket, buffer, *parser, [self = shared_from_this()](auto error, std::size_t) {
      if (!error) self->reply();
    });
  }
  void reply() {
    const auto request = parser->release();
    const std::string path(request.target());
    response = {http::status::ok, 11, etcd.instead(path)};
    if (response.body().empty()) response.body() = etcd.answer(path, request.body());
    response.prepare_payload();
    http::async_write(socket, response, [self = shared_from_this()](auto error, std::size_t) {
      if (!error) self->read();
    });
  }
  FakeEtcd& etcd;
  tcp::socket socket;
  boost::beast::flat_buffer buffer;
  std::optional<http::request_parser<http::string_body>> parser;
  http::response<http::string_body> response;
};

FakeEtcd::FakeEtcd(boost::asio::io_context& io)
    : acceptor_(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)) {
  accept();
}

rendezvous::EtcdEndpoint FakeEtcd::endpoint() const {
  return {"127.0.0.1", acceptor_.local_endpoint().port()};
}

void FakeEtcd::accept() {
  acceptor_.async_accept([this](auto error, tcp::socket socket) {
    if (error) return;
    std::make_shared<Session>(*this, std::move(socket))->read();
    accept();
  });
}

void FakeEtcd::put(const std::string& key, const std::string& value) {
  created.try_emplace(key, revision_);
  keys[key] = value;
}

std::string FakeEtcd::answer(const std::string& path, const std::string& body) {
  ++requests;
  largest_request = std::max(largest_request, body.size());
  const json query = json::parse(body);
  if (path == "/v3/lease/grant") return R"({"ID":"7","TTL":"2"})";
  if (path == "/v3/lease/revoke")
    return keys.erase("/ddprun/leader"), created.erase("/ddprun/leader"), "{}";
  if (path == "/v3/lease/keepalive") return R"({"result":{"ID":"7","TTL":"2"}})";
  json reply = {{"header", {{"revision", std::to_string(revision_)}}}};
  if (path == "/v3/kv/range") {
    const std::string first = plain(query, "key");
    const std::string end = query.contains("range_end") ? plain(query, "range_end") : first + '\0';
    const std::size_t limit = std::stoul(query.value("limit", "1000"));
    for (auto it = keys.lower_bound(first); it != keys.end() && it->first < end; ++it) {
      if (reply["kvs"].size() == limit) reply["more"] = true;
      if (reply["kvs"].size() == limit) break;
      reply["kvs"].push_back({{"key", base64(it->first)}, {"value", base64(it->second)}});
    }
    return reply.dump();
  }
  const json& compare = query["compare"][0];
  const auto guard = created.find(plain(compare, "key"));
  const std::int64_t is = guard == created.end() ? 0 : guard->second;
  if (std::to_string(is) != compare["create_revision"]) return reply.dump();
  reply["header"]["revision"] = std::to_string(++revision_);
  reply["succeeded"] = true;
  for (const json& operation : query["success"]) {
    if (operation.contains("request_put")) {
      put(plain(operation["request_put"], "key"), plain(operation["request_put"], "value"));
      continue;
    }
    const json& range = operation["request_delete_range"];
    const auto from = keys.lower_bound(plain(range, "key"));
    const auto to = keys.lower_bound(plain(range, "range_end"));
    for (auto it = from; it != to; ++it) created.erase(it->first);
    keys.erase(from, to);
  }
  return reply.dump();
}

}  // namespace ddprun::tests
