#pragma once
// Bytes to and from one peer over a connected non-blocking socket, plain or under TLS: one step at
// a time, never waiting. The Link, the Connector and the Listener wait, by the loop, for what a
// step says it wants.

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/error.h"
#include "rendezvous/net/tls_psk.h"

namespace ddprun::rendezvous {

enum class StepStatus {
  kDone,       // `bytes` were moved, or the handshake is complete.
  kWantRead,   // Try again once the socket can be read.
  kWantWrite,  // Try again once the socket can be written.
  kClosed,     // The peer has closed its side.
  kFailed,     // `failure` says why; the channel is of no further use.
};

struct ChannelStep {
  StepStatus status;
  std::size_t bytes = 0;
  Failure failure = {};
  bool more = true;  // After a read: there may be more to read at once.
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Of a server: kDone once what the client says first is here in full, as far as can be told
  // without reading it. Costs next to nothing, unlike handshake(), whoever the client is.
  virtual ChannelStep first_words() = 0;
  // To be repeated until kDone, before anything else.
  virtual ChannelStep handshake() = 0;
  virtual ChannelStep read(char* into, std::size_t size) = 0;
  virtual ChannelStep write(
      std::string_view bytes) = 0;  // After a kWant, again with the same bytes or more.
  virtual void say_goodbye() = 0;   // Tells the peer that no more will be written.
};

// `fd` is borrowed and must outlive the channel. A failed handshake of a TLS client has code
// kBadToken where the peer speaks TLS but does not know our token, kBadMessage where it speaks
// something else.
std::unique_ptr<Channel> make_plain_client(int fd);
std::unique_ptr<Channel> make_plain_server(int fd);
std::unique_ptr<Channel> make_tls_channel(int fd, const TlsContext& context, TlsRole role);

}  // namespace ddprun::rendezvous
