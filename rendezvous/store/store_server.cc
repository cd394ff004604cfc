#include "rendezvous/store/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/store_sockets/store_clients.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/peer_user.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kComplaintsMax = 10;

bool of_this_machine(const AcceptedSocket& socket) {
  return socket.peer.is_loopback() || socket.peer == socket.local;
}

bool is_connected(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_state == TCP_ESTABLISHED;
}

}  // namespace

class StoreServer::Core : public std::enable_shared_from_this<StoreServer::Core> {
 public:
  Core(boost::asio::io_context& io, StoreServerOptions options)
      : io_(io), options_(std::move(options)), handed_over_(io), ready_(io) {
    if (options_.own_user_only) users_.emplace();
  }
  ~Core() { ready_.release(); }  // The descriptor is the clients'.

  Result<void> start(UniqueFd listening) {
    auto clients = store::StoreClients::make(options_.clients,
                                             [this](const std::string& text) { complain(text); });
    if (!clients) return clients.error();
    clients_ = std::move(*clients);
    ready_.assign(clients_->descriptor());
    wait();
    port = local_port(listening.get());
    listening_ = std::move(listening);
    if (!options_.await_admission) accept();
    return {};
  }

  Result<void> admit(const std::vector<std::string>& addresses);
  void close();
  const store::StoreClients& clients() const { return *clients_; }

  std::uint16_t port = 0;
  std::size_t refused = 0;

 private:
  void accept();
  std::optional<std::string> objection_to(const AcceptedSocket& socket);
  std::optional<std::string> objection_to_user(const AcceptedSocket& socket);
  void take(AcceptedSocket socket, const std::optional<std::string>& objection);
  void await_handed_over();
  void take_handed_over();
  void wait();
  void complain(const std::string& text);

  boost::asio::io_context& io_;
  const StoreServerOptions options_;
  std::optional<PeerUsers> users_;  // With own_user_only.
  bool warned_ = false;
  UniqueFd listening_;  // Until the accept loop has it.
  std::shared_ptr<AcceptLoop> accept_loop_;
  std::set<boost::asio::ip::address> admitted_;
  boost::asio::posix::stream_descriptor handed_over_;
  boost::asio::posix::stream_descriptor ready_;  // Of the clients: some can be served.
  std::unique_ptr<store::StoreClients> clients_;
  int complaints_ = 0;
};

Result<void> StoreServer::Core::admit(const std::vector<std::string>& addresses) {
  Result<void> result;
  admitted_.clear();
  for (const std::string& address : addresses) {
    boost::system::error_code malformed;
    const auto parsed = boost::asio::ip::make_address(address, malformed);
    if (!malformed) admitted_.insert(parsed);
    if (malformed) result = Failure{Errc::kBadOption, "'" + address + "' is not a numeric address"};
  }
  accept();
  return result;
}

// Not before the first admit() if that is awaited: other nodes may learn of a round, and their
// workers come, before this one does.
void StoreServer::Core::accept() {
  if (!listening_) return;
  accept_loop_ = AcceptLoop::start(io_, std::move(listening_),
                                   [weak = weak_from_this()](AcceptedSocket socket) {
                                     const auto core = weak.lock();
                                     if (!core) return;
                                     const auto objection = core->objection_to(socket);
                                     core->take(std::move(socket), objection);
                                   });
  if (options_.handed_over_fd < 0) return;
  handed_over_.assign(::fcntl(options_.handed_over_fd, F_DUPFD_CLOEXEC, 0));
  await_handed_over();
}

void StoreServer::Core::await_handed_over() {
  handed_over_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [weak = weak_from_this()](boost::system::error_code error) {
                            const auto core = weak.lock();
                            if (!error && core) core->take_handed_over();
                          });
}

// The daemon has seen that they come from a node, by an address that may be a translated one.
void StoreServer::Core::take_handed_over() {
  constexpr int kMost = 64;  // A turn.
  for (int i = 0; i < kMost; ++i) {
    auto client = receive_descriptor(handed_over_.native_handle());
    if (!client) {
      complain(to_string(client.error()));
      // That one is lost: this process had no descriptor left.
      if (client.error().code == Errc::kBadMessage) continue;
      boost::system::error_code ignored;
      handed_over_.close(ignored);
      return;
    }
    if (!*client) break;
    const int fd = (*client)->get();
    if (!is_connected(fd)) continue;  // Of a rank that has ended, in an earlier round.
    AcceptedSocket socket{std::move(**client), peer_address(fd), local_address(fd)};
    const auto objection = options_.own_user_only ? objection_to_user(socket) : std::nullopt;
    take(std::move(socket), objection);
  }
  await_handed_over();
}

void StoreServer::Core::close() {
  listening_.reset();
  if (accept_loop_) accept_loop_->stop();
  accept_loop_.reset();
  boost::system::error_code ignored;
  handed_over_.close(ignored);
  if (ready_.is_open()) ready_.release();
  clients_->close();
}

// Clients on this machine are admitted, whichever of its addresses they use. An empty objection is
// one that need not be logged.
std::optional<std::string> StoreServer::Core::objection_to(const AcceptedSocket& socket) {
  if (options_.admit_everyone) return std::nullopt;
  if (!of_this_machine(socket) && !admitted_.contains(socket.peer)) {
    return "which is no node of this round";
  }
  return options_.own_user_only ? objection_to_user(socket) : std::nullopt;
}

// An address of this machine may be another node's too, so those are checked if that is cheap.
std::optional<std::string> StoreServer::Core::objection_to_user(const AcceptedSocket& socket) {
  const bool local = of_this_machine(socket);
  if (!local && !users_->is_quick()) return std::nullopt;
  switch (users_->look_up(socket.fd.get())) {
    case PeerUser::kOurs: return std::nullopt;
    case PeerUser::kOthers: return "which is another user's process on this machine";
    case PeerUser::kGone: return "";
    case PeerUser::kElsewhere:
      if (!local) return std::nullopt;
      return "which belongs to no process here (a proxy? see store_users in docs/environment.md)";
    case PeerUser::kUnknown: break;
  }
  if (!std::exchange(warned_, true)) {
    log::warning(
        "the kernel does not report which user owns a connection: other users of this machine can "
        "reach "
        "the workers' store");
  }
  return std::nullopt;
}

void StoreServer::Core::take(AcceptedSocket socket, const std::optional<std::string>& objection) {
  const std::string peer = socket.peer.to_string();
  if (objection) {
    ++refused;
    if (!objection->empty()) complain("refused " + peer + ", " + *objection);
    return;
  }
  tune_socket(socket.fd.get(), Milliseconds(0));
  if (of_this_machine(socket)) spare_congestion_control(socket.fd.get());
  if (!clients_->take(std::move(socket.fd), peer)) ++refused;
}

// All sockets of the clients are one descriptor here, which is ready while any of them is.
void StoreServer::Core::wait() {
  ready_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [weak = weak_from_this()](boost::system::error_code error) {
                      const auto core = weak.lock();
                      if (error || !core || !core->ready_.is_open()) return;
                      core->clients_->serve();
                      core->wait();
                    });
}

void StoreServer::Core::complain(const std::string& text) {
  if (++complaints_ > kComplaintsMax) return;
  log::warning(
      "store on port " + std::to_string(port) + ": " + text +
      (complaints_ == kComplaintsMax ? "; further warnings of this kind are omitted" : ""));
}

Result<std::unique_ptr<StoreServer>> StoreServer::listen(boost::asio::io_context& io,
                                                         StoreServerOptions options) {
  Result<UniqueFd> listening = listen_socket(options.address, options.port);
  if (!listening) return listening.error();
  auto core = std::make_shared<Core>(io, std::move(options));
  if (const Result<void> started = core->start(std::move(*listening)); !started) {
    return started.error();
  }
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(core)));
}

StoreServer::~StoreServer() { close(); }
std::uint16_t StoreServer::port() const { return core_->port; }
Result<void> StoreServer::admit(const std::vector<std::string>& addresses) {
  return core_->admit(addresses);
}
void StoreServer::close() { core_->close(); }
std::size_t StoreServer::connection_count() const { return core_->clients().connection_count(); }
std::size_t StoreServer::refused_count() const { return core_->refused; }
std::size_t StoreServer::key_count() const { return core_->clients().key_count(); }

using boost::asio::posix::stream_descriptor;

namespace {

constexpr std::size_t kLineMax = 16'384;  // Then the oldest is closed: each takes a descriptor.

}  // namespace

void StoreHandOver::send(UniqueFd client) {
  if (line_.size() >= kLineMax) line_.pop_front();
  line_.push_back(std::move(client));
  if (!waits_) flush();
}

// ETOOMANYREFS: the user has as many descriptors on their way as it may have open.
void StoreHandOver::flush() {
  for (; !line_.empty(); line_.pop_front()) {
    const std::array<int, 1> client{line_.front().get()};
    const auto sent = send_descriptors(socket_.native_handle(), "s", client,
                                       "handing over a client of the store");
    if (sent) continue;
    const int why = sent.error().code.value();
    if (why != EAGAIN && why != ETOOMANYREFS) {
      log::debug(to_string(sent.error()));
      continue;
    }
    waits_ = true;
    return socket_.async_wait(stream_descriptor::wait_write, [this](boost::system::error_code ec) {
      if (ec) return;
      waits_ = false;
      flush();
    });
  }
}

}  // namespace ddprun::rendezvous
