#pragma once
// The messages by which two nodes that cannot reach each other get a stream of bytes through the
// daemon's port, and their JSON form (docs/protocol.md). Instead of a Hello, a Dial or a Meet is
// the first and only message of a link; the only answer is Joined, after which the link carries
// the bytes of the other one. Pure.
//
//   process of a node              daemon               agent of the other node
//     Dial (node, port) ─────────────▶
//                                       Relay ─────────────▶  on its own link; it connects to the
//                                       ◀────────────── Meet  port, and to the daemon once more
//     ◀──────────────────────── Joined  Joined ────────────▶
//     ◀═══════════════════════════ bytes ══════════════════▶

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// Wants a stream to `port` of `node`, of a run of which there are nodes here.
struct Dial {
  static constexpr const char* kName = "dial";
  int version = kProtocolVersion;
  std::string run_id;
  NodeId node;
  int port = 0;
  bool operator==(const Dial&) const = default;
};
// The other end of the stream that a Relay has named.
struct Meet {
  static constexpr const char* kName = "meet";
  int version = kProtocolVersion;
  std::string run_id;
  NodeId node;  // Whose agent it is.
  std::uint64_t stream = 0;
  std::string error{};  // Not empty: why there will be no stream.
  bool operator==(const Meet&) const = default;
};
using RelayRequest = std::variant<Dial, Meet>;

struct Joined {
  std::string error{};  // Not empty: there is no stream, and why.
  bool again = false;   // Another dial may succeed, such as once the node is back.
  bool operator==(const Joined&) const = default;
};

std::string encode(const RelayRequest& request);
std::string encode(const Joined& joined);

// Anything but a well-formed message within limits is Errc::kBadMessage, with the name of the
// field.
Result<RelayRequest> decode_relay_request(std::string_view body);
Result<Joined> decode_joined(std::string_view body);

}  // namespace ddprun::rendezvous
