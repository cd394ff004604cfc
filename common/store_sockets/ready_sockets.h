#pragma once
// Reports which of many sockets can be read or written, for a server of many small requests: a
// socket is registered once, and one system call reports all that are ready. The set is itself one
// descriptor, which any loop can wait for. Does not own the sockets. Used by the StoreClients.

#include <cstdint>
#include <functional>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::store {

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

}  // namespace ddprun::store
