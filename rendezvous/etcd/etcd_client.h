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
<<<<<<< ours

namespace ddprun::rendezvous::etcd {

// Posts requests to etcd's JSON gateway over HTTP/1.1, plain or in TLS, one at a time, and goes on
// to the next endpoint when one fails. It logs in where a user is given, and again when etcd does
// not know the login any more. It knows nothing else of what is said, and tries nothing twice.

// What the daemon says to etcd and what etcd answers, as the JSON of etcd's v3 gateway. Pure: the
// bytes are etcd_client's. Keys and values travel in base64, 64-bit numbers as strings.
std::string base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

// For a key: 16 digits, in the order of the numbers. Not for negative ones.
std::string sortable(std::int64_t number);

// A path of the gateway and the body to post there.
struct Request {
  std::string path;
  std::string body;
};

Request log_in(const std::string& user, const std::string& password);
Request grant_lease(std::int64_t seconds);
Request renew_lease(std::int64_t lease);
Request revoke_lease(std::int64_t lease);  // With the keys under it.
Request get(const std::string& key);
// At most `limit` keys from `first` up to but not including `end`, in their order.
Request get_range(const std::string& first, const std::string& end, int limit);
// Creates `key` under `lease` unless it is there.
Request create(const std::string& key, const std::string& value, std::int64_t lease);

struct Put {
  std::string key, value;
};
struct DeleteRange {
  std::string first, end;
};
// All of it, or nothing if `guard` was not created by revision `term`.
Request write_if(const std::string& guard, std::int64_t term, const std::vector<Put>& puts,
                 const std::vector<DeleteRange>& deletes);

struct Lease {
  std::int64_t id = 0, ttl_seconds = 0;  // 0 s: there is no such lease any more.
};
struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0;
};
struct Range {
  std::vector<KeyValue> found;
  bool more = false;
};
struct Outcome {
  bool succeeded = false;
  std::int64_t revision = 0;  // Of the store, afterwards.
};

// A failure says what etcd complained of, or which field is not what it should be.
Result<std::string> read_login(std::string_view body);  // Fit for a header.
Result<Lease> read_lease(std::string_view body);
Result<Range> read_range(std::string_view body);
Result<Outcome> read_outcome(std::string_view body);

// Where a journal in etcd begins.
struct JournalStart {
  std::int64_t term = 0, first = 0;
};
std::string manifest_text(const JournalStart& manifest);
Result<JournalStart> read_manifest(std::string_view text);

}  // namespace ddprun::rendezvous::etcd
=======
#include "rendezvous/etcd/etcd_messages.h"
>>>>>>> theirs

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
  std::string ca = {};    // Authorities whose certificates are believed; empty: the system's.
  std::string cert = {};  // Our own certificate, and those between it and its authority.
  std::string key = {};   // Its private key, without a passphrase. Given if `cert` is.
};

// Which certificates are believed, and which one is shown to an etcd that wants one.
using EtcdTrust = std::shared_ptr<boost::asio::ssl::context>;

// The failure is one sentence for the user.
Result<EtcdTrust> make_etcd_trust(const EtcdTlsFiles& files);

struct EtcdAccess {
  EtcdTrust trust = {};   // Null: none.
  std::string user = {};  // Empty: etcd asks nobody who he is.
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
