#include "common/store_sockets/ready_sockets.h"

#include <sys/epoll.h>

#include <array>

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

}  // namespace ddprun::store
