#include "rendezvous/store/ready_sockets.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

// Sockets learnt of by one system call. Those that stay ready queue up behind the others.
constexpr std::size_t kEventsPerCall = 256;

// Calls in a row before the rest of the io_context has its turn.
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

Result<std::shared_ptr<ReadySockets>> ReadySockets::start(boost::asio::io_context& io,
                                                          OnReady on_ready) {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return errno_failure("making an epoll descriptor");
  std::shared_ptr<ReadySockets> set(new ReadySockets(io, fd, std::move(on_ready)));
  set->wait();
  return set;
}

Result<void> ReadySockets::add(int fd, std::uint32_t events) {
  if (!control(EPOLL_CTL_ADD, fd, events)) return errno_failure("waiting for a socket");
  return {};
}

void ReadySockets::change(int fd, std::uint32_t events) {
  const bool changed = control(EPOLL_CTL_MOD, fd, events);
  DDPRUN_ASSERT(changed);
}

bool ReadySockets::control(int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = to_epoll(events);
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.native_handle(), operation, fd, &event) == 0;
}

void ReadySockets::stop() {
  boost::system::error_code ignored;
  epoll_.close(ignored);
}

void ReadySockets::wait() {
  epoll_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](boost::system::error_code error) {
                      if (!error && self->epoll_.is_open()) self->tell();
                    });
}

void ReadySockets::tell() {
  for (int i = 0; i < kCallsPerTurn; ++i) {
    if (!tell_once()) break;
  }
  if (epoll_.is_open()) wait();
}

// False where asking again at once is not worth a system call.
bool ReadySockets::tell_once() {
  std::array<epoll_event, kEventsPerCall> events;
  const int ready = ::epoll_wait(epoll_.native_handle(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    on_ready_(event.data.fd, from_epoll(event.events));
    if (!epoll_.is_open()) return false;
  }
  return ready > 1;
}

}  // namespace ddprun::rendezvous
