#include "rendezvous/listener.h"

#include <malloc.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <list>

#include "common/log.h"
#include "rendezvous/accept_loop.h"
#include "rendezvous/complaints.h"

namespace ddprun::rendezvous {

using boost::asio::ip::tcp;

constexpr std::size_t kCrowd = 256;  // Handshakes at once that leave much memory behind.

class Listener::Core : public std::enable_shared_from_this<Listener::Core> {
 public:
  Core(boost::asio::io_context& io, ListenOptions options, TlsContext tls,
       std::function<void(std::shared_ptr<Link>)> on_link)
      : io_(io), options_(std::move(options)), tls_(std::move(tls)), on_link_(std::move(on_link)) {}

  void start(UniqueFd listening);
  void close();

  std::uint16_t port = 0;
  RefusalCounts refused;
  std::size_t link_count() const { return static_cast<std::size_t>(slot_.use_count()) - 1; }
  std::size_t handshake_count() const { return handshakes_.size(); }

 private:
  using Handshakes = std::list<std::shared_ptr<Handshake>>;  // Oldest first.

  void take(AcceptedSocket accepted);
  void begin_handshake(AcceptedSocket accepted);
  void finish_handshake(Handshakes::iterator which, const std::string& peer,
                        Result<Connected> connected);
  void give_back_memory();
  void refuse(Refusal refusal, const std::string& peer, const std::string& why);
  std::unique_ptr<Channel> make_channel(int fd) const {
    return tls_ ? make_tls_channel(fd, tls_, TlsRole::kServer) : make_plain_server(fd);
  }

  boost::asio::io_context& io_;
  const ListenOptions options_;
  const TlsContext tls_;  // Null without a token.
  const std::function<void(std::shared_ptr<Link>)> on_link_;
  std::shared_ptr<AcceptLoop> accept_loop_;
  Handshakes handshakes_;
  std::size_t crowd_ = 0;  // The most at once since there were none.
  std::shared_ptr<int> slot_ =
      std::make_shared<int>();  // Each link holds it too, until it is closed.
  Complaints complaints_;
};

void Listener::Core::start(UniqueFd listening) {
  port = local_port(listening.get());
  accept_loop_ = AcceptLoop::start(io_, std::move(listening),
                                   [weak = weak_from_this()](AcceptedSocket socket) {
                                     if (const auto core = weak.lock())
                                       core->take(std::move(socket));
                                   });
}

void Listener::Core::close() {
  if (accept_loop_) accept_loop_->stop();
  accept_loop_.reset();
  for (const auto& handshake : handshakes_) handshake->cancel();
  handshakes_.clear();
}

void Listener::Core::take(AcceptedSocket accepted) {
  if (link_count() + handshakes_.size() >= options_.connections_max) {
    return refuse(Refusal::kTooMany, accepted.peer.to_string(),
                  "there are already " + std::to_string(options_.connections_max) + " connections");
  }
  if (handshakes_.size() >= options_.handshakes_max) {
    handshakes_.front()->cancel();
    handshakes_.pop_front();
    refused.add(Refusal::kHandshakeTimeout);
  }
  begin_handshake(std::move(accepted));
}

void Listener::Core::begin_handshake(AcceptedSocket accepted) {
  const int fd = accepted.fd.get();
  tune_socket(fd, options_.link.user_timeout);
  const auto protocol = accepted.local.is_v6() ? tcp::v6() : tcp::v4();
  Connected connection{tcp::socket(io_, protocol, accepted.fd.release()), make_channel(fd)};
  const auto which = handshakes_.insert(handshakes_.end(), nullptr);
  crowd_ = std::max(crowd_, handshakes_.size());
  *which = Handshake::start(std::move(connection), options_.handshake_timeout,
                            [core = shared_from_this(), which,
                             peer = accepted.peer.to_string()](Result<Connected> connected) {
                              core->finish_handshake(which, peer, std::move(connected));
                            });
}

void Listener::Core::finish_handshake(Handshakes::iterator which, const std::string& peer,
                                      Result<Connected> connected) {
  handshakes_.erase(which);
  give_back_memory();
  if (!connected) {
    return refuse(refusal_of(connected.error().code), peer, to_string(connected.error()));
  }
  on_link_(Link::make(std::move(*connected), options_.link, slot_));
}

// A TLS handshake needs three times the memory of the link that it makes. After a crowd has come,
// that would stay with the allocator, in holes.
void Listener::Core::give_back_memory() {
  if (!handshakes_.empty()) return;
  if (std::exchange(crowd_, 0) < kCrowd) return;
  boost::asio::post(io_, [] { ::malloc_trim(0); });
}

void Listener::Core::refuse(Refusal refusal, const std::string& peer, const std::string& why) {
  refused.add(refusal);
  const auto line = complaints_.say(
      peer + " " + name_of(refusal),
      "refused a connection from " + peer + " on port " + std::to_string(port) + ": " + why,
      std::chrono::steady_clock::now());
  if (line) log::warning(*line, {.peer = peer});
}

Result<std::unique_ptr<Listener>> Listener::open(
    boost::asio::io_context& io, ListenOptions options,
    std::function<void(std::shared_ptr<Link>)> on_link) {
  TlsContext tls;
  if (!options.token.empty()) {
    Result<TlsContext> made = make_tls_context(TlsRole::kServer, options.token);
    if (!made) return made.error();
    tls = std::move(*made);
  }
  Result<UniqueFd> listening = options.listening_fd >= 0
                                   ? Result<UniqueFd>(UniqueFd(options.listening_fd))
                                   : listen_socket(options.address, options.port);
  if (!listening) return listening.error();
  auto core = std::make_shared<Core>(io, std::move(options), std::move(tls), std::move(on_link));
  core->start(std::move(*listening));
  return std::unique_ptr<Listener>(new Listener(std::move(core)));
}

Listener::~Listener() { close(); }
std::uint16_t Listener::port() const { return core_->port; }
void Listener::close() { core_->close(); }
std::size_t Listener::link_count() const { return core_->link_count(); }
std::size_t Listener::handshake_count() const { return core_->handshake_count(); }
std::size_t Listener::refused_count() const { return core_->refused.total(); }
RefusalCounts Listener::refused() const { return core_->refused; }

}  // namespace ddprun::rendezvous
