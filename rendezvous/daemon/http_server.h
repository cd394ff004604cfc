#pragma once
// Answers HTTP/1.1 requests for small pages, in the daemon's own loop: a client that is slow, sends
// too much or never reads costs the others no more than the limits below. The only user of
// Boost.Beast, which implements the protocol. Independent of what is on the pages.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/daemon/http_message.h"

namespace ddprun::rendezvous {

struct HttpOptions {
  std::string address = "127.0.0.1";  // Numeric.
  std::uint16_t port = 0;             // 0: any.
  std::size_t connections_max = 64;   // For more, the one that has been idle for longest goes.
  std::uint32_t header_bytes_max = 8 << 10;
  std::uint64_t body_bytes_max = 4 << 10;  // No page wants one.
  int requests_max = 1'000;                // On one connection.
  Milliseconds read_timeout{5'000};        // For a whole request, and between two.
  Milliseconds write_timeout{5'000};       // For a whole answer.
  // Whether a request with this Host header is served; others get 403. Empty: all are. A request
  // without the header comes from no browser and is served.
  std::function<bool(std::string_view host)> serves{};
};

class HttpServer {
 public:
  // Called from the loop, for each request that is HTTP at all. HEAD comes as GET; its answer's
  // body is not sent.
  using Handler = std::function<HttpReply(std::string_view method, std::string_view target)>;

  static Result<std::unique_ptr<HttpServer>> open(boost::asio::io_context& io, HttpOptions options,
                                                  Handler handler);
  ~HttpServer();  // Frees the port; connections end when their answer is out.
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  std::size_t connection_count() const;

 private:
  class Core;
  explicit HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::shared_ptr<Core> core_;
};

}  // namespace ddprun::rendezvous
