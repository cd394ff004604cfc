#include "common/store_sockets/store_clients.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/assert.h"

namespace ddprun::store {
namespace {

// Sockets reported by one system call. Those that stay ready queue up behind the others.
constexpr std::size_t kEventsPerCall = 256;

// Calls in a row before the rest of a loop has its turn.
constexpr int kCallsPerTurn = 8;

std::uint32_t to_epoll(std::uint32_t events) {
  return (events & ReadySockets::kReadable ? EPOLLIN : 0U) |
         (events & ReadySockets::kWritable ? EPOLLOUT : 0U);
}

std::uint32_t from_epoll(std::uint32_t events) {
  if (events & (EPOLLERR | EPOLLHUP)) return ReadySockets::kReadable | ReadySockets::kWritable;
  return (events & EPOLLIN ? ReadySockets::kReadable : 0U) |
         (events & EPOLLOUT ? ReadySockets::kWritable : 0U);
}

}  // namespace

Result<ReadySockets> ReadySockets::make() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno_failure("making an epoll descriptor");
  return ReadySockets(std::move(epoll));
}

Result<void> ReadySockets::add(int fd, std::uint32_t events) {
  if (!control(EPOLL_CTL_ADD, fd, events)) return errno_failure("waiting for a socket");
  return {};
}

void ReadySockets::change(int fd, std::uint32_t events) {
  const bool changed = control(EPOLL_CTL_MOD, fd, events);
  DDPRUN_ASSERT(changed);
}

void ReadySockets::remove(int fd) {
  const bool removed = control(EPOLL_CTL_DEL, fd, kNothing);
  DDPRUN_ASSERT(removed);
}

bool ReadySockets::control(int operation, int fd, std::uint32_t events) {
  DDPRUN_ASSERT(epoll_);
  epoll_event event{};
  event.events = to_epoll(events);
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

void ReadySockets::report(const OnReady& on_ready) {
  for (int i = 0; i < kCallsPerTurn; ++i) {
    if (!report_once(on_ready)) break;
  }
}

// False if another call at once is not worth its time.
bool ReadySockets::report_once(const OnReady& on_ready) {
  std::array<epoll_event, kEventsPerCall> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    on_ready(event.data.fd, from_epoll(event.events));
    if (!epoll_) return false;
  }
  return ready > 1;
}

namespace {

// Unsent; a client that has so many is not read from.
constexpr std::size_t kReadNoMoreBytes = 1 << 20;

}  // namespace

Result<std::unique_ptr<StoreClients>> StoreClients::make(const StoreClientsOptions& options,
                                                         OnComplaint on_complaint) {
  Result<ReadySockets> ready = ReadySockets::make();
  if (!ready) return ready.error();
  return std::unique_ptr<StoreClients>(
      new StoreClients(options, std::move(*ready), std::move(on_complaint)));
}

StoreClients::StoreClients(const StoreClientsOptions& options, ReadySockets ready,
                           OnComplaint on_complaint)
    : options_(options),
      on_complaint_(std::move(on_complaint)),
      machine_(options_.limits),
      ready_(std::move(ready)) {}

bool StoreClients::take(UniqueFd socket, std::string peer) {
  DDPRUN_ASSERT(socket);
  if (clients_.size() >= options_.connections_max) {
    on_complaint_("refused " + peer + ", for there are already " + std::to_string(clients_.size()) +
                  " connections");
    return false;
  }
  const int fd = socket.get();
  if (const Result<void> added = ready_.add(fd, ReadySockets::kReadable); !added) {
    on_complaint_("refused " + peer + ": " + to_string(added.error()));
    return false;
  }
  const bool fresh = clients_.emplace(fd, Client{std::move(peer), std::move(socket)}).second;
  DDPRUN_ASSERT(fresh);
  machine_.open(fd);
  return true;
}

void StoreClients::serve() {
  ready_.report([this](int fd, std::uint32_t events) { serve_client(fd, events); });
}

void StoreClients::close() {
  ready_.stop();
  clients_.clear();
  replies_.clear();
}

void StoreClients::serve_client(int fd, std::uint32_t events) {
  Client* const client = find(fd);
  if (!client) return;  // Dropped since this was reported.
  events &= client->awaited;
  if (events & ReadySockets::kWritable) flush(fd, *client);
  if (events & ReadySockets::kReadable && find(fd)) read(fd);
}

void StoreClients::read(int fd) {
  const ssize_t got = ::recv(fd, scratch_.data(), scratch_.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(fd, {});
  const std::string_view bytes(scratch_.data(), static_cast<std::size_t>(got));
  const Result<void> fed = machine_.feed(fd, bytes, replies_);
  deliver();
  if (!fed) drop(fd, to_string(fed.error()));
}

// Sending may fail and drop a connection, which may end others' waits: those answers join the end.
void StoreClients::deliver() {
  if (delivering_) return;
  delivering_ = true;
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    const StoreReply reply = std::move(replies_[i]);
    if (Client* client = find(reply.connection)) send(reply.connection, *client, reply.bytes);
  }
  replies_.clear();
  delivering_ = false;
}

void StoreClients::send(int fd, Client& client, std::string_view bytes) {
  if (client.unsent() == 0) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return drop(fd, {});
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (bytes.empty()) return;
  }
  client.out += bytes;
  if (client.unsent() > options_.unsent_bytes_max) return drop(fd, "does not read its answers");
  await(fd, client);
}

void StoreClients::flush(int fd, Client& client) {
  const ssize_t sent = ::send(fd, client.out.data() + client.sent, client.unsent(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return drop(fd, {});
  if (sent > 0) client.sent += static_cast<std::size_t>(sent);
  if (client.unsent() == 0) {
    client.sent = 0;
    std::string().swap(client.out);
  } else if (client.sent > client.out.size() / 2) {
    // Cut off seldom enough to cost less than the sending.
    client.out.erase(0, client.sent);
    client.sent = 0;
  }
  await(fd, client);
}

void StoreClients::await(int fd, Client& client) {
  std::uint32_t awaited = client.unsent() > 0 ? ReadySockets::kWritable : 0U;
  if (client.unsent() < kReadNoMoreBytes) awaited |= ReadySockets::kReadable;
  if (awaited == client.awaited) return;
  client.awaited = awaited;
  ready_.change(fd, awaited);
}

void StoreClients::drop(int fd, const std::string& why) {
  const auto entry = clients_.find(fd);
  if (entry == clients_.end()) return;
  if (!why.empty()) on_complaint_("closed the connection of " + entry->second.peer + ": " + why);
  ready_.remove(fd);
  clients_.erase(entry);
  machine_.close(fd, replies_);
  deliver();
}

}  // namespace ddprun::store
