#pragma once
// Posts requests to etcd's JSON gateway over plain HTTP/1.1, one at a time, and goes on to the next
// endpoint when one fails. It knows nothing of what they say, and tries nothing twice.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/etcd_messages.h"

namespace ddprun::rendezvous {

struct EtcdEndpoint {
  std::string host;  // An IPv6 address without its brackets.
  std::uint16_t port = 2379;
  bool operator==(const EtcdEndpoint&) const = default;
};

// "http://a:2379,http://[::1]". The failure is one sentence for the user.
Result<std::vector<EtcdEndpoint>> parse_etcd_endpoints(std::string_view text);

class EtcdClient {
 public:
  static constexpr std::size_t kAnswerBytesMax = std::size_t{16} << 20;

  EtcdClient(boost::asio::io_context& io, std::vector<EtcdEndpoint> endpoints);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // The handler gets the body of the answer, once, from the loop, within `limit`; not at all if the
  // client goes before. A failure names the endpoint and the operation. Not while one is under way.
  void post(const etcd::Request& request, Milliseconds limit,
            std::function<void(Result<std::string>)> handler);

 private:
  class Call;

  boost::asio::io_context& io_;
  const std::vector<EtcdEndpoint> endpoints_;
  std::size_t which_ = 0;  // Of endpoints_.
  std::shared_ptr<Call> call_;
};

}  // namespace ddprun::rendezvous
