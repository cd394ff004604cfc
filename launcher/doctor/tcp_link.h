#pragma once
// One TCP connection between two nodes, or within one: whether it can be made, how long that takes,
// how much goes through it, and how much of that had to be sent again. Server and client belong to
// the same doctor: both know a nonce; the server closes connections of clients that do not.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::doctor {

struct Address {
  std::string host;  // Numeric, or a name.
  std::uint16_t port = 0;
};

// On all interfaces; port 0: any.
Result<UniqueFd> listen_on(std::uint16_t port);
std::uint16_t port_of(const UniqueFd& listening);

// Serves in a process of its own, which ends with this object.
class LinkServer {
 public:
  static Result<LinkServer> start(std::uint16_t port, const std::string& nonce);
  LinkServer(LinkServer&& other) noexcept
      : process_(std::exchange(other.process_, ChildProcess())), port_(other.port_) {}
  LinkServer& operator=(LinkServer&&) = delete;
  ~LinkServer();

  std::uint16_t port() const { return port_; }

 private:
  LinkServer(ChildProcess process, std::uint16_t port)
      : process_(std::move(process)), port_(port) {}

  ChildProcess process_;
  std::uint16_t port_ = 0;
};

struct LinkRequest {
  Milliseconds limit{3'000};  // Of everything.
  Milliseconds send_for{0};   // How long data is sent; 0: one block.
};

struct LinkMeasurement {
  std::string error = {};  // "refused", "no answer", "connects, but data does not arrive".
  double connect_ms = 0;
  double gb_s = 0;  // Best of some pieces; 0: not measured.
  std::int64_t segments = 0;
  std::int64_t segments_again = 0;
  std::string own_address = {};  // As the other end sees us.
};

LinkMeasurement measure_link(const Address& to, const std::string& nonce,
                             const LinkRequest& request);

}  // namespace ddprun::doctor
