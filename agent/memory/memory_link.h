#pragma once
// The agent's end of the socket pair to its node's memory server.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent::memory {

// What an agent and the memory server of its node exchange, one JSON text per datagram of a
// socket pair. Both are forks of the same launcher.
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

class MemoryLink {
 public:
  // `fd` is borrowed.
  MemoryLink(boost::asio::io_context& loop, int fd);

  // From the loop.
  std::function<void(const Report&)> on_report;

  // A server that does not read what it is sent gets no more of it.
  void send(const Order& order);
  void close();  // on_report is not called any more.

 private:
  void await();

  boost::asio::posix::stream_descriptor socket_;
};

}  // namespace ddprun::agent::memory
