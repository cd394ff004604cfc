#include "rendezvous/store_server.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <deque>
#include <set>
#include <unordered_map>

#include "common/log.h"
#include "rendezvous/accept_loop.h"
#include "rendezvous/store.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

constexpr std::size_t kReadBytes =
    64 << 10;  // A turn of one client, so that none keeps others waiting.
constexpr std::size_t kReadNoMoreBytes =
    1 << 20;  // Unsent; whoever has so much is not asked for more.
constexpr int kComplaintsMax = 10;

struct Session {
  Session(boost::asio::io_context& io, int number, AcceptedSocket accepted)
      : id(number),
        peer(accepted.peer.to_string()),
        socket(io, accepted.local.is_v6() ? tcp::v6() : tcp::v4(), accepted.fd.release()) {}

  const int id;
  const std::string peer;
  tcp::socket socket;
  std::string out;
  std::size_t sent = 0;  // Of `out`.
  bool writing = false;  // The socket is full and waited for.
  bool reading = false;  // More requests are waited for.

  std::size_t unsent() const { return out.size() - sent; }
};
using SessionPtr = std::shared_ptr<Session>;

}  // namespace

class StoreServer::Core : public std::enable_shared_from_this<StoreServer::Core> {
 public:
  Core(boost::asio::io_context& io, StoreServerOptions options)
      : io_(io), options_(std::move(options)), machine_(options_.limits) {}

  void start(UniqueFd listening) {
    port = local_port(listening.get());
    accept_loop_ = AcceptLoop::start(io_, std::move(listening),
                                     [weak = weak_from_this()](AcceptedSocket socket) {
                                       if (const auto core = weak.lock())
                                         core->take(std::move(socket));
                                     });
  }

  Result<void> admit(const std::vector<std::string>& addresses);
  void close();
  std::size_t connection_count() const { return sessions_.size(); }
  std::size_t key_count() const { return machine_.key_count(); }

  std::uint16_t port = 0;
  std::size_t refused = 0;

 private:
  bool admitted(const AcceptedSocket& socket) const;
  void take(AcceptedSocket socket);
  void wait_readable(const SessionPtr& session);
  void read(const SessionPtr& session);
  void deliver();
  void flush(const SessionPtr& session);
  void wait_writable(const SessionPtr& session);
  void drop(const SessionPtr& session, const std::string& why);
  void complain(const std::string& text);
  bool open(const SessionPtr& session) const { return session->socket.is_open(); }

  boost::asio::io_context& io_;
  const StoreServerOptions options_;
  StoreMachine machine_;
  std::shared_ptr<AcceptLoop> accept_loop_;
  std::set<boost::asio::ip::address> admitted_;
  std::unordered_map<int, SessionPtr> sessions_;
  int next_id_ = 0;
  std::vector<StoreReply> replies_;  // Of the machine, not delivered yet.
  bool delivering_ = false;
  int complaints_ = 0;
  std::array<char, kReadBytes> scratch_;
};

Result<void> StoreServer::Core::admit(const std::vector<std::string>& addresses) {
  std::set<boost::asio::ip::address> parsed;
  for (const std::string& address : addresses) {
    boost::system::error_code malformed;
    parsed.insert(boost::asio::ip::make_address(address, malformed));
    if (malformed) return Failure{Errc::kBadOption, "'" + address + "' is not a numeric address"};
  }
  admitted_ = std::move(parsed);
  return {};
}

void StoreServer::Core::close() {
  if (accept_loop_) accept_loop_->stop();
  accept_loop_.reset();
  for (const auto& [id, session] : sessions_) {
    boost::system::error_code ignored;
    session->socket.close(ignored);
  }
  sessions_.clear();
  replies_.clear();
}

// Whoever is on this machine is admitted, whichever of its addresses was used.
bool StoreServer::Core::admitted(const AcceptedSocket& socket) const {
  return options_.admit_everyone || socket.peer.is_loopback() || socket.peer == socket.local ||
         admitted_.contains(socket.peer);
}

void StoreServer::Core::take(AcceptedSocket socket) {
  if (!admitted(socket)) {
    ++refused;
    return complain("refused " + socket.peer.to_string() + ", which is no node of this round");
  }
  if (sessions_.size() >= options_.connections_max) {
    ++refused;
    return complain("refused " + socket.peer.to_string() + ", for there are already " +
                    std::to_string(sessions_.size()) + " connections");
  }
  tune_socket(socket.fd.get(), Milliseconds(0));
  const auto session = std::make_shared<Session>(io_, next_id_++, std::move(socket));
  sessions_.emplace(session->id, session);
  machine_.open(session->id);
  wait_readable(session);
}

void StoreServer::Core::wait_readable(const SessionPtr& session) {
  session->reading = true;
  session->socket.async_wait(tcp::socket::wait_read,
                             [core = shared_from_this(), session](boost::system::error_code error) {
                               session->reading = false;
                               if (!error && core->open(session)) core->read(session);
                             });
}

void StoreServer::Core::read(const SessionPtr& session) {
  const ssize_t got = ::recv(session->socket.native_handle(), scratch_.data(), scratch_.size(), 0);
  if (got == 0) return drop(session, {});
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return wait_readable(session);
  if (got < 0) return drop(session, {});
  const std::string_view bytes(scratch_.data(), static_cast<std::size_t>(got));
  const Result<void> fed = machine_.feed(session->id, bytes, replies_);
  deliver();
  if (!open(session)) return;
  if (!fed) return drop(session, to_string(fed.error()));
  if (session->unsent() < kReadNoMoreBytes) wait_readable(session);
}

// Sending may fail and drop a connection, which may end others' waits: those answers join the end.
void StoreServer::Core::deliver() {
  if (delivering_) return;
  delivering_ = true;
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    const StoreReply reply = std::move(replies_[i]);
    const auto entry = sessions_.find(reply.connection);
    if (entry == sessions_.end()) continue;
    const SessionPtr session = entry->second;
    session->out += reply.bytes;
    if (!session->writing) flush(session);
    if (open(session) && session->unsent() > options_.unsent_bytes_max) {
      drop(session, "does not read its answers");
    }
  }
  replies_.clear();
  delivering_ = false;
}

void StoreServer::Core::flush(const SessionPtr& session) {
  while (session->unsent() > 0) {
    const ssize_t sent =
        ::send(session->socket.native_handle(), session->out.data() + session->sent,
               session->unsent(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return wait_writable(session);
    if (sent < 0) return drop(session, {});
    session->sent += static_cast<std::size_t>(sent);
  }
  session->sent = 0;
  if (session->out.capacity() > kReadBytes) {
    std::string().swap(session->out);
  } else {
    session->out.clear();
  }
}

void StoreServer::Core::wait_writable(const SessionPtr& session) {
  // What was sent is cut off seldom enough to cost less than the sending.
  if (session->sent > session->out.size() / 2) {
    session->out.erase(0, session->sent);
    session->sent = 0;
  }
  session->writing = true;
  session->socket.async_wait(tcp::socket::wait_write,
                             [core = shared_from_this(), session](boost::system::error_code error) {
                               session->writing = false;
                               if (error || !core->open(session)) return;
                               core->flush(session);
                               if (!core->open(session) || session->reading) return;
                               if (session->unsent() < kReadNoMoreBytes)
                                 core->wait_readable(session);
                             });
}

void StoreServer::Core::drop(const SessionPtr& session, const std::string& why) {
  if (!open(session)) return;
  if (!why.empty()) complain("closed the connection of " + session->peer + ": " + why);
  boost::system::error_code ignored;
  session->socket.close(ignored);
  sessions_.erase(session->id);
  machine_.close(session->id, replies_);
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
  core->start(std::move(*listening));
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
