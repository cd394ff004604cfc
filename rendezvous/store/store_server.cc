#include "rendezvous/store/store_server.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/store/store.h"
#include "common/system/log.h"
#include "common/system/peer_user.h"
#include "rendezvous/net/accept_loop.h"
#include "rendezvous/store/ready_sockets.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kReadBytes =
    64 << 10;  // A turn of one client, so that none keeps others waiting.
constexpr std::size_t kReadNoMoreBytes =
    1 << 20;  // Unsent; whoever has so much is not asked for more.
constexpr int kComplaintsMax = 10;

struct Session {
  std::string peer;
  UniqueFd fd;
  std::string out = {};
  std::size_t sent = 0;  // Of `out`.
  std::uint32_t awaited = ReadySockets::kReadable;

  std::size_t unsent() const { return out.size() - sent; }
};

bool of_this_machine(const AcceptedSocket& socket) {
  return socket.peer.is_loopback() || socket.peer == socket.local;
}

}  // namespace

class StoreServer::Core : public std::enable_shared_from_this<StoreServer::Core> {
 public:
  Core(boost::asio::io_context& io, StoreServerOptions options)
      : io_(io), options_(std::move(options)), machine_(options_.limits) {
    if (options_.own_user_only) users_.emplace();
  }

  Result<void> start(UniqueFd listening) {
    auto ready = ReadySockets::start(io_, [weak = weak_from_this()](int fd, std::uint32_t events) {
      if (const auto core = weak.lock()) core->serve(fd, events);
    });
    if (!ready) return ready.error();
    ready_ = std::move(*ready);
    port = local_port(listening.get());
    listening_ = std::move(listening);
    if (!options_.await_admission) accept();
    return {};
  }

  Result<void> admit(const std::vector<std::string>& addresses);
  void close();
  std::size_t connection_count() const { return sessions_.size(); }
  std::size_t key_count() const { return machine_.key_count(); }

  std::uint16_t port = 0;
  std::size_t refused = 0;

 private:
  void accept();
  std::optional<std::string> objection_to(const AcceptedSocket& socket);
  std::optional<std::string> objection_to_user(const AcceptedSocket& socket);
  void take(AcceptedSocket socket);
  void serve(int fd, std::uint32_t events);
  void read(int fd);
  void deliver();
  void send(int fd, Session& session, std::string_view bytes);
  void flush(int fd, Session& session);
  void await(int fd, Session& session);
  void drop(int fd, const std::string& why);
  Session* find(int fd) {
    const auto entry = sessions_.find(fd);
    return entry == sessions_.end() ? nullptr : &entry->second;
  }
  void complain(const std::string& text);

  boost::asio::io_context& io_;
  const StoreServerOptions options_;
  StoreMachine machine_;
  std::optional<PeerUsers> users_;  // With own_user_only.
  bool warned_ = false;
  UniqueFd listening_;  // Until the accept loop has it.
  std::shared_ptr<AcceptLoop> accept_loop_;
  std::set<boost::asio::ip::address> admitted_;
  std::shared_ptr<ReadySockets> ready_;
  std::unordered_map<int, Session> sessions_;  // By descriptor, which is the machine's number too.
  std::vector<StoreReply> replies_;            // Of the machine, not delivered yet.
  bool delivering_ = false;
  int complaints_ = 0;
  std::array<char, kReadBytes> scratch_;
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

// Not before the first admit() where that is awaited: other nodes may hear of a round, and their
// workers come, before this one does.
void StoreServer::Core::accept() {
  if (!listening_) return;
  accept_loop_ = AcceptLoop::start(io_, std::move(listening_),
                                   [weak = weak_from_this()](AcceptedSocket socket) {
                                     if (const auto core = weak.lock())
                                       core->take(std::move(socket));
                                   });
}

void StoreServer::Core::close() {
  listening_.reset();
  if (accept_loop_) accept_loop_->stop();
  accept_loop_.reset();
  if (ready_) ready_->stop();
  ready_.reset();
  sessions_.clear();
  replies_.clear();
}

// Whoever is on this machine is admitted, whichever of its addresses was used. An empty objection
// is none that anybody needs to hear.
std::optional<std::string> StoreServer::Core::objection_to(const AcceptedSocket& socket) {
  if (options_.admit_everyone) return std::nullopt;
  if (!of_this_machine(socket) && !admitted_.contains(socket.peer)) {
    return "which is no node of this round";
  }
  return options_.own_user_only ? objection_to_user(socket) : std::nullopt;
}

// An address of this machine may be another node's too, so those are looked at where it is cheap.
std::optional<std::string> StoreServer::Core::objection_to_user(const AcceptedSocket& socket) {
  const bool local = of_this_machine(socket);
  if (!local && !users_->is_quick()) return std::nullopt;
  switch (users_->look_up(socket.fd.get())) {
    case PeerUser::kOurs: return std::nullopt;
    case PeerUser::kOthers: return "which is another user's process on this machine";
    case PeerUser::kGone: return "";
    case PeerUser::kElsewhere:
      if (!local) return std::nullopt;
      return "which no process here has (a proxy? see store_users in docs/environment.md)";
    case PeerUser::kUnknown: break;
  }
  if (!std::exchange(warned_, true)) {
    log::warning(
        "the kernel does not tell whose a connection is: other users of this machine can reach "
        "the workers' store");
  }
  return std::nullopt;
}

void StoreServer::Core::take(AcceptedSocket socket) {
  if (const auto objection = objection_to(socket)) {
    ++refused;
    if (objection->empty()) return;
    return complain("refused " + socket.peer.to_string() + ", " + *objection);
  }
  if (sessions_.size() >= options_.connections_max) {
    ++refused;
    return complain("refused " + socket.peer.to_string() + ", for there are already " +
                    std::to_string(sessions_.size()) + " connections");
  }
  const int fd = socket.fd.get();
  if (const Result<void> added = ready_->add(fd, ReadySockets::kReadable); !added) {
    ++refused;
    return complain("refused " + socket.peer.to_string() + ": " + to_string(added.error()));
  }
  tune_socket(fd, Milliseconds(0));
  if (of_this_machine(socket)) spare_congestion_control(fd);
  sessions_.emplace(fd, Session{socket.peer.to_string(), std::move(socket.fd)});
  machine_.open(fd);
}

void StoreServer::Core::serve(int fd, std::uint32_t events) {
  Session* const session = find(fd);
  if (!session) return;  // Dropped since this was learnt.
  events &= session->awaited;
  if (events & ReadySockets::kWritable) flush(fd, *session);
  if (events & ReadySockets::kReadable && find(fd)) read(fd);
}

void StoreServer::Core::read(int fd) {
  const ssize_t got = ::recv(fd, scratch_.data(), scratch_.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(fd, {});
  const std::string_view bytes(scratch_.data(), static_cast<std::size_t>(got));
  const Result<void> fed = machine_.feed(fd, bytes, replies_);
  deliver();
  if (!fed) drop(fd, to_string(fed.error()));
}

// Sending may fail and drop a connection, which may end others' waits: those answers join the end.
void StoreServer::Core::deliver() {
  if (delivering_) return;
  delivering_ = true;
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    const StoreReply reply = std::move(replies_[i]);
    if (Session* session = find(reply.connection)) send(reply.connection, *session, reply.bytes);
  }
  replies_.clear();
  delivering_ = false;
}

void StoreServer::Core::send(int fd, Session& session, std::string_view bytes) {
  if (session.unsent() == 0) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return drop(fd, {});
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (bytes.empty()) return;
  }
  session.out += bytes;
  if (session.unsent() > options_.unsent_bytes_max) return drop(fd, "does not read its answers");
  await(fd, session);
}

void StoreServer::Core::flush(int fd, Session& session) {
  const ssize_t sent =
      ::send(fd, session.out.data() + session.sent, session.unsent(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return drop(fd, {});
  if (sent > 0) session.sent += static_cast<std::size_t>(sent);
  if (session.unsent() == 0) {
    session.sent = 0;
    std::string().swap(session.out);
  } else if (session.sent > session.out.size() / 2) {
    // Cut off seldom enough to cost less than the sending.
    session.out.erase(0, session.sent);
    session.sent = 0;
  }
  await(fd, session);
}

void StoreServer::Core::await(int fd, Session& session) {
  std::uint32_t awaited = session.unsent() > 0 ? ReadySockets::kWritable : 0U;
  if (session.unsent() < kReadNoMoreBytes) awaited |= ReadySockets::kReadable;
  if (awaited == session.awaited) return;
  session.awaited = awaited;
  ready_->change(fd, awaited);
}

void StoreServer::Core::drop(int fd, const std::string& why) {
  const auto entry = sessions_.find(fd);
  if (entry == sessions_.end()) return;
  if (!why.empty()) complain("closed the connection of " + entry->second.peer + ": " + why);
  sessions_.erase(entry);
  machine_.close(fd, replies_);
  deliver();
}

void StoreServer::Core::complain(const std::string& text) {
  if (++complaints_ > kComplaintsMax) return;
  log::warning("store on port " + std::to_string(port) + ": " + text +
               (complaints_ == kComplaintsMax ? "; saying no more of this kind" : ""));
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
std::size_t StoreServer::connection_count() const { return core_->connection_count(); }
std::size_t StoreServer::refused_count() const { return core_->refused; }
std::size_t StoreServer::key_count() const { return core_->key_count(); }

}  // namespace ddprun::rendezvous
