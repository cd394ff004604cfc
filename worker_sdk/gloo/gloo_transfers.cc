#include "worker_sdk/gloo/gloo_transfers.h"

#include <gloo/common/error.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
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

namespace {

using Wait = bool (gloo::transport::UnboundBuffer::*)(std::chrono::milliseconds);

// False if the peer is gone and the message neither arrived nor left before.
bool wait_for(gloo::transport::UnboundBuffer& buffer, Wait wait, Clock::time_point deadline) {
  if ((buffer.*wait)(left_until(deadline))) return true;
  // The peer's loss may have been reported after the message was complete: then the second wait
  // succeeds.
  try {
    return (buffer.*wait)(std::chrono::milliseconds(1));
  } catch (const gloo::Exception&) {
    return false;
  }
}

}  // namespace

GlooTransfers::~GlooTransfers() {
  forget(received_);
  forget(sent_);
}

void GlooTransfers::forget(Buffers& buffers) {
  for (const auto& buffer : buffers) watch_.remove(*buffer);
  buffers.clear();
}

void GlooTransfers::send(int peer, const void* data, std::size_t bytes, std::uint32_t part) {
  if (bytes == 0) return;
  // Gloo's buffers serve both directions and so require writable memory.
  sent_.push_back(context_.createUnboundBuffer(const_cast<void*>(data), bytes));
  watch_.add(peer, *sent_.back());
  sent_.back()->send(peer, slot_ + part);
}

void GlooTransfers::recv(int peer, void* data, std::size_t bytes, std::uint32_t part) {
  if (bytes == 0) return;
  received_.push_back(context_.createUnboundBuffer(data, bytes));
  watch_.add(peer, *received_.back());
  received_.back()->recv(peer, slot_ + part);
}

void GlooTransfers::wait_received() {
  for (const auto& buffer : received_) {
    if (!wait_for(*buffer, &gloo::transport::UnboundBuffer::waitRecv, deadline_)) {
      throw gloo::IoException("the sender of a message is gone");
    }
  }
  forget(received_);
}

void GlooTransfers::wait() {
  wait_received();
  for (const auto& buffer : sent_) {
    if (!wait_for(*buffer, &gloo::transport::UnboundBuffer::waitSend, deadline_)) {
      throw gloo::IoException("the receiver of a message is gone");
    }
  }
  forget(sent_);
}

}  // namespace ddprun::worker_sdk
