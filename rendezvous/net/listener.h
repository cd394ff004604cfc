#pragma once
// The daemon's side of the control link: takes connections, sees their handshake through and hands
// over those that are Links. Whoever speaks something else, never speaks or comes in masses costs
// the others nothing but the listener's limits. All calls are made on the loop's thread.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/net/link.h"
#include "rendezvous/protocol/refusal.h"

namespace ddprun::rendezvous {

struct ListenOptions {
  std::string address = {};                // Numeric; empty: every address of this machine.
  std::uint16_t port = 0;                  // 0: any.
  int listening_fd = -1;                   // If not -1: a listening socket to take over instead.
  std::string token = {};                  // Empty: no TLS, and anybody is let in.
  Milliseconds handshake_timeout{15'000};  // Without TLS: for the first byte.
  std::size_t connections_max = 65'536;  // Links and handshakes together; more are closed at once.
  std::size_t handshakes_max = 16'384;   // Beyond, the oldest handshake gives way to the newest.
  std::size_t handshakes_at_once = 2'048;  // The others wait in line (rendezvous/net/turnstile.h),
  Milliseconds handshake_patience{200};    // but not for those that take longer than this.
  LinkOptions link = {};
};

class Listener {
 public:
  // `on_link` is called from the loop, with Links not started yet.
  static Result<std::unique_ptr<Listener>> open(boost::asio::io_context& io, ListenOptions options,
                                                std::function<void(std::shared_ptr<Link>)> on_link);
  ~Listener();  // close()s.
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::uint16_t port() const;

  // Frees the port and drops unfinished handshakes. Links live on.
  void close();

  std::size_t link_count() const;       // Links made here and not closed yet.
  std::size_t handshake_count() const;  // Under way.
  std::size_t refused_count() const;    // Connections that did not become links.
  RefusalCounts refused() const;        // The same by reason.

 private:
  class Core;
  explicit Listener(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::shared_ptr<Core> core_;
};

}  // namespace ddprun::rendezvous
