#pragma once
// Where the workers of a node get relayed streams: a port of loopback, at which the agent's
// RelayThread takes one line per connection (docs/protocol.md, "Relayed streams of workers"):
//
//   open NONCE ADDRESS PORT,PORT,...   other nodes may dial these ports of this node, until this
//                                      connection closes; the answer is "ok"
//   dial NONCE NODE PORT               the answer is "ok", and the connection is a stream to that
//                                      port of that node from then on; or the reason, behind
//                                      "again" if another try may succeed, else behind "no"
//
// The nonce is in the workers' environment, where other users cannot read it.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/error.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// The ports of a node that others may dial, and at which address each is reached.
class OpenPorts {
 public:
  // Until the handle is let go; a later one of the same port counts.
  std::shared_ptr<void> open(const std::string& address, const std::vector<std::uint16_t>& ports);
  std::optional<std::string> address_of(std::uint16_t port) const;

 private:
  struct Opened {
    std::string address;
    std::uint64_t number = 0;
  };
  using Table = std::map<std::uint16_t, Opened>;

  std::shared_ptr<Table> table_ = std::make_shared<Table>();
  std::uint64_t next_ = 0;
};

struct OpenRequest {
  std::string address;
  std::vector<std::uint16_t> ports;
  bool operator==(const OpenRequest&) const = default;
};
struct DialRequest {
  NodeId node;
  std::uint16_t port = 0;
  bool operator==(const DialRequest&) const = default;
};
using EntryRequest = std::variant<OpenRequest, DialRequest>;

constexpr std::size_t kEntryLineMax = 16 << 10;

// A line without its end. A Failure names what is wrong with it.
Result<EntryRequest> parse_entry_request(std::string_view line, std::string_view nonce);

class RelayEntry {
 public:
  // Whether a connection may send a line, by its socket. Others are closed at once, so that they
  // take no place of the workers'.
  using Admits = std::function<bool(int client)>;
  // `dial` gets the stream's local end and answers on it.
  using OnDial = std::function<void(const DialRequest&, UniqueFd client)>;

  RelayEntry(boost::asio::io_context& io, UniqueFd listening, std::string nonce, OpenPorts& ports,
             Admits admits, OnDial dial);

 private:
  class Client;

  boost::asio::io_context& io_;
  const std::string nonce_;
  OpenPorts& ports_;
  const Admits admits_;
  const OnDial dial_;
  std::shared_ptr<int> slot_ = std::make_shared<int>();  // Each client holds it.
  std::shared_ptr<AcceptLoop> accept_loop_;
};

}  // namespace ddprun::rendezvous
