#pragma once
// The clients of one StoreMachine: their sockets, and what each of them has not been sent yet. Does
// not decide which clients may connect and does not wait: its owner accepts connections, hands them
// to take(), and calls serve() whenever descriptor() is readable. Used by the StoreServer, on the
// agent's and the daemon's loop, and by the SDK's StoreHost, on a thread of its own.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/error.h"
#include "common/store/store_machine.h"
#include "common/system/descriptors.h"

namespace ddprun::store {

// Reports which of many sockets can be read or written, for a server of many small requests: a
// socket is registered once, and one system call reports all that are ready. The set is itself one
// descriptor, which any loop can wait for. Does not own the sockets.
class ReadySockets {
 public:
  // What a socket is waited for, or has come to.
  enum Events : std::uint32_t { kNothing = 0, kReadable = 1, kWritable = 2 };

  // An error or a hangup counts as both. May be called for a socket that was removed since.
  using OnReady = std::function<void(int fd, std::uint32_t events)>;

  static Result<ReadySockets> make();

  // Readable while report() has something to report.
  int descriptor() const { return epoll_.get(); }

  Result<void> add(int fd, std::uint32_t events);
  void change(int fd, std::uint32_t events);

  // Before `fd` is closed: the kernel goes on reporting it if a forked child still holds the
  // socket.
  void remove(int fd);

  // Reports what is ready now, again and again while sockets stay ready, but returns soon so that
  // the rest of a loop has its turn.
  void report(const OnReady& on_ready);

  // Nothing is reported any more, not even by a report() under way.
  void stop() { epoll_.reset(); }

 private:
  explicit ReadySockets(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  bool report_once(const OnReady& on_ready);
  bool control(int operation, int fd, std::uint32_t events);

  UniqueFd epoll_;
};

struct StoreClientsOptions {
  std::size_t connections_max = 65'536;
  // For one client; above, the client does not read its answers and is dropped.
  std::size_t unsent_bytes_max = 128 << 20;
  StoreLimits limits = {};
};

class StoreClients {
 public:
  // Is given why a client was refused or dropped, unless it just hung up. Must not call back.
  using OnComplaint = std::function<void(const std::string& text)>;

  static Result<std::unique_ptr<StoreClients>> make(const StoreClientsOptions& options,
                                                    OnComplaint on_complaint);
  StoreClients(const StoreClients&) = delete;
  StoreClients& operator=(const StoreClients&) = delete;

  // A non-blocking socket and the peer's address for complaints. False: refused, and closed.
  bool take(UniqueFd socket, std::string peer);

  int descriptor() const { return ready_.descriptor(); }
  void serve();

  // Drops all clients, without a complaint; none is served any more.
  void close();

  std::size_t connection_count() const { return clients_.size(); }
  std::size_t key_count() const { return machine_.key_count(); }

 private:
  struct Client {
    std::string peer;
    UniqueFd socket;
    std::string out = {};
    std::size_t sent = 0;  // Of `out`.
    std::uint32_t awaited = ReadySockets::kReadable;

    std::size_t unsent() const { return out.size() - sent; }
  };

  static constexpr std::size_t kReadBytes = 64 << 10;  // A turn of one client: others wait for it.

  StoreClients(const StoreClientsOptions& options, ReadySockets ready, OnComplaint on_complaint);

  void serve_client(int fd, std::uint32_t events);
  void read(int fd);
  void deliver();
  void send(int fd, Client& client, std::string_view bytes);
  void flush(int fd, Client& client);
  void await(int fd, Client& client);
  void drop(int fd, const std::string& why);
  Client* find(int fd) {
    const auto entry = clients_.find(fd);
    return entry == clients_.end() ? nullptr : &entry->second;
  }

  const StoreClientsOptions options_;
  const OnComplaint on_complaint_;
  StoreMachine machine_;
  ReadySockets ready_;
  std::unordered_map<int, Client> clients_;  // By descriptor, which is the machine's number too.
  std::vector<StoreReply> replies_;          // Of the machine, not delivered yet.
  bool delivering_ = false;
  std::array<char, kReadBytes> scratch_;
};

}  // namespace ddprun::store
