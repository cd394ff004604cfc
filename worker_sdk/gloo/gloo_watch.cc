#include "worker_sdk/gloo/gloo_watch.h"

#include <gloo/common/error.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::uint64_t kSentinelSlot = std::uint64_t{0x72} << 56;
// Time for Gloo's thread to read the end of a connection that has ended.
constexpr std::chrono::seconds kGlooPatience{5};

// Whichever of the two it waits in.
void free_waits(gloo::transport::UnboundBuffer& buffer) {
  buffer.abortWaitRecv();
  buffer.abortWaitSend();
}

}  // namespace

struct GlooWatch::Sentinel {
  Sentinel(gloo::Context& context, int peer)
      : buffer(context.createUnboundBuffer(&nothing, sizeof(nothing))) {
    buffer->recv(peer, kSentinelSlot);
  }
  char nothing = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

GlooWatch::GlooWatch() : stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw refused({}, "eventfd", errno);
  thread_ = start_thread("ddprun-watch", {}, [this] { run(); });
}

void GlooWatch::begin(gloo::Context& context, const std::vector<GlooConnection>& connections) {
  sentinels_.resize(connections.size());
  std::vector<int> sockets;
  for (std::size_t r = 0; r < connections.size(); ++r) {
    sockets.push_back(connections[r].socket.get());
    if (connections[r].socket) {
      sentinels_[r] = std::make_unique<Sentinel>(context, static_cast<int>(r));
    }
  }
  const std::lock_guard lock(mutex_);
  sockets_ = std::move(sockets);
  begun_.notify_all();
}

GlooWatch::~GlooWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    begun_.notify_all();
  }
  for (const auto& sentinel : sentinels_) {
    if (sentinel) sentinel->buffer->abortWaitRecv();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void GlooWatch::add(int peer, gloo::transport::UnboundBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  pending_[&buffer] = {peer, &buffer};
  if (all_free_) free_waits(buffer);
}

void GlooWatch::free_all() noexcept {
  const std::lock_guard lock(mutex_);
  all_free_ = true;
  for (const auto& [key, wait] : pending_) free_waits(*wait.second);
}

void GlooWatch::remove(const gloo::transport::UnboundBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  pending_.erase(&buffer);
}

void GlooWatch::run() {
  const SigpipeGuard guard;
  std::vector<pollfd> entries;
  {
    std::unique_lock lock(mutex_);
    begun_.wait(lock, [&] { return sockets_ || stopping_.load(); });
    if (!sockets_) return;
    for (const int socket : *sockets_) entries.push_back({socket, POLLRDHUP, 0});
  }
  entries.push_back({stop_.get(), POLLIN, 0});
  while (!stopping_.load()) {
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    for (std::size_t r = 0; r + 1 < entries.size(); ++r) {
      if (entries[r].revents == 0) continue;
      entries[r].fd = -1;  // Its end is reported once, also if the next poll() is interrupted.
      entries[r].revents = 0;
      lose(static_cast<int>(r));
    }
  }
}

void GlooWatch::lose(int peer) {
  try {
    sentinels_[static_cast<std::size_t>(peer)]->buffer->waitRecv(kGlooPatience);
  } catch (const gloo::Exception&) {
  }
  int none = -1;
  first_lost_.compare_exchange_strong(none, peer);
  const std::lock_guard lock(mutex_);
  for (const auto& [key, wait] : pending_) {
    if (wait.first != peer) continue;
    free_waits(*wait.second);
  }
}

}  // namespace ddprun::worker_sdk
