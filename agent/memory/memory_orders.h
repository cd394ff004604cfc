#pragma once
// What an agent and the memory server of its node exchange, one JSON text per datagram of a
// socket pair. Both are forks of the same launcher. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent::memory {

constexpr std::size_t kDatagramMax = 64 << 10;

// From the agent: with each seat, and again to a server that was started anew.
struct Order {
  std::string node;       // Of the agent, ...
  std::string host{};     // ... and its name for people, ...
  std::string address{};  // ... and where other nodes reach it.
  std::optional<rendezvous::MemoryPeer> copy_to{};
  std::optional<rendezvous::MemoryFill> fill{};  // It waits for Report::kFilled or kNotFilled.
  // Of the rendezvous daemon, which relays what cannot go straight to its node; 0: it does not.
  std::string daemon_host{};
  int daemon_port = 0;
  bool one_port = false;  // Nothing goes straight to its node.
  bool operator==(const Order&) const = default;
};

// From the server.
struct Report {
  enum class Kind {
    kStarted,    // And wants the last Order.
    kUsed,       // `used` has changed.
    kChanged,    // There is something that the copy lacks; until the next kCopied.
    kFilling,    // More has arrived.
    kFilled,     // All files have arrived.
    kNotFilled,  // They will not, as the server has logged.
    kCopied,     // The other node has all files, as they were when this copy began.
  };
  Kind kind = Kind::kStarted;
  std::uint64_t used = 0;  // Bytes of this node's folder. Of kUsed and kCopied.
  bool relayed = false;    // Of kCopied: through the daemon.
  bool operator==(const Report&) const = default;
};

std::string encode(const Order& order);
std::string encode(const Report& report);
Result<Order> decode_order(std::string_view text);
Result<Report> decode_report(std::string_view text);

}  // namespace ddprun::agent::memory
