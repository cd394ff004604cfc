#pragma once
// The daemon's side of the control link: takes connections, sees their handshake through and hands
// over those that are Links. Clients that send something else, send nothing or come in masses cost
// the others no more than the listener's limits. All calls are made on the loop's thread.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "rendezvous/net/link.h"
#include "rendezvous/protocol/refusal.h"

namespace ddprun::rendezvous {

// TCP sockets as ddprun wants them: close-on-exec (a worker must not inherit them), non-blocking,
// without Nagle's delay. Asio's own calls leave the first out. Used by the store, the control link
// and HTTP.

// Listens on a numeric address; an empty one means every address of this machine, of both families
// if IPv6 exists. Port 0 lets the kernel choose. If the port is taken, the Failure names the
// process that has it.
Result<UniqueFd> listen_socket(const std::string& address, std::uint16_t port);
// At any port of loopback: no firewall stands there, so that DDPRUN_PORT_RANGE does not count.
Result<UniqueFd> listen_on_loopback();

struct AcceptedSocket {
  UniqueFd fd;
  boost::asio::ip::address peer;  // IPv4 as such, even if it arrived on an IPv6 socket.
  boost::asio::ip::address local;
};

// One waiting connection; nothing if none is waiting.
Result<std::optional<AcceptedSocket>> accept_socket(int listening_fd);

// A socket for connecting, not connected yet.
Result<UniqueFd> client_socket(const boost::asio::ip::address& towards);

// TCP_NODELAY, keepalive and, if not zero, how long sent bytes may stay without acknowledgement.
void tune_socket(int fd, Milliseconds user_timeout);

// For a connection within one host, where there is no congestion: a rate-based control such as BBR,
// which some distributions choose for all, only costs time at each send.
void spare_congestion_control(int fd);

std::uint16_t local_port(int fd);
boost::asio::ip::address local_address(int fd);
boost::asio::ip::address peer_address(int fd);

// Takes new connections off a listening socket, a bounded number a turn. When the process has run
// out of descriptors, it retries for a while; after that it closes the connections that wait, so
// that their other ends do not wait for an answer until their deadline. Used by the StoreServer and
// the Listener, which log such a shortage, and by the relay's thread, which logs nothing.
class AcceptLoop : public std::enable_shared_from_this<AcceptLoop> {
 public:
  using OnSocket = std::function<void(AcceptedSocket)>;
  using OnShort = std::function<void(const std::string& complaint)>;

  // Begins at once; `on_socket` is called from the loop until stop(), never from inside start(), as
  // is `on_short`, once or twice per shortage. Null: the complaint is logged as a warning.
  static std::shared_ptr<AcceptLoop> start(boost::asio::io_context& io, UniqueFd listening,
                                           OnSocket on_socket, OnShort on_short = nullptr);

  // Frees the port. on_socket is not called any more.
  void stop();

 private:
  AcceptLoop(boost::asio::io_context& io, OnSocket on_socket, OnShort on_short);

  void wait();
  void take();
  void pause();
  void outlast(const Failure& failure);

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  OnSocket on_socket_;
  OnShort on_short_;
  bool reported_ = false;  // That something is short.
  bool closes_ = false;    // It has been short for long.
  std::chrono::steady_clock::time_point short_since_{};
  SpareDescriptor spare_;
};

struct ListenOptions {
  std::string address = {};                // Numeric; empty: every address of this machine.
  std::uint16_t port = 0;                  // 0: any.
  int listening_fd = -1;                   // If not -1: a listening socket to take over instead.
  std::string token = {};                  // Empty: no TLS, and every client is admitted.
  Milliseconds handshake_timeout{15'000};  // Without TLS: for the first byte.
  std::size_t connections_max = 65'536;  // Links and handshakes together; more are closed at once.
  std::size_t handshakes_max = 16'384;   // Beyond, the oldest handshake gives way to the newest.
  std::size_t handshakes_at_once = 2'048;  // The others wait in line (rendezvous/net/turnstile.h),
  Milliseconds handshake_patience{200};    // but not for those that take longer than this.
  LinkOptions link = {};
  // With TLS: gets those that begin as a TCPStore's clients do, with nothing read from them.
  std::function<void(AcceptedSocket)> on_store_client = nullptr;
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
