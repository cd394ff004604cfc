#pragma once
// etcd's JSON gateway: its messages, and the client that posts them.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/etcd/etcd_messages.h"

namespace boost::asio::ssl {
class context;
}

namespace ddprun::rendezvous {

struct EtcdEndpoint {
  std::string host;  // An IPv6 address without its brackets.
  std::uint16_t port = 2379;
  bool tls = false;
  bool operator==(const EtcdEndpoint&) const = default;
};

// "http://a:2379,https://[::1]". The failure is one sentence for the user.
Result<std::vector<EtcdEndpoint>> parse_etcd_endpoints(std::string_view text);

struct EtcdTlsFiles {
  std::string ca = {};    // Trusted authorities; empty: the system's.
  std::string cert = {};  // Our own certificate, and those between it and its authority.
  std::string key = {};   // Its private key, without a passphrase. Given if `cert` is.
};

// Which certificates are believed, and which one is shown to an etcd that wants one.
using EtcdTrust = std::shared_ptr<boost::asio::ssl::context>;

// The failure is one sentence for the user.
Result<EtcdTrust> make_etcd_trust(const EtcdTlsFiles& files);

struct EtcdAccess {
  EtcdTrust trust = {};   // Null: none.
  std::string user = {};  // Empty: without authentication.
  std::string password = {};
};

class EtcdClient {
 public:
  static constexpr std::size_t kAnswerBytesMax = std::size_t{16} << 20;

  EtcdClient(boost::asio::io_context& io, std::vector<EtcdEndpoint> endpoints,
             EtcdAccess access = {});
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // The handler gets the body of the answer, once, from the loop, within `limit`; not at all if the
  // client goes before. A failure names the endpoint and the operation. Not while one is under way.
  // A login that has to come first has kLoginLimit of its own.
  void post(const etcd::Request& request, Milliseconds limit,
            std::function<void(Result<std::string>)> handler);

 private:
  class Call;
  static constexpr Milliseconds kLoginLimit{3'000};  // etcd makes it slow on purpose.

  void log_in(std::function<void(Result<void>)> then);
  void send(const etcd::Request& request, Milliseconds limit,
            std::function<void(Result<std::string>)> handler);

  boost::asio::io_context& io_;
  const std::vector<EtcdEndpoint> endpoints_;
  EtcdAccess access_;
  std::string login_;      // What etcd gave for user and password; empty: not logged in.
  std::size_t which_ = 0;  // Of endpoints_.
  std::shared_ptr<Call> call_;
};

}  // namespace ddprun::rendezvous
