#include "worker_sdk/gloo/gloo_peers.h"

#include <gloo/common/error.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>

namespace ddprun::worker_sdk {

// As the base does, but before this is no GlooPair any more: from then on there are no events.
GlooPair::~GlooPair() {
  const std::lock_guard lock(m_);
  if (state_ != CLOSED) Pair::changeState(CLOSED);
}

// As the base does. Who holds the lock may wait for this thread, so the events come again then.
void GlooPair::handleEvents(int events) {
  const std::unique_lock lock(m_, std::try_to_lock);
  if (!lock || ex_) return;
  try {
    if (state_ == CONNECTED) handleReadWrite(events);
    if (state_ == CONNECTING) return handleConnecting();
    if (state_ == LISTENING) return handleListening();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

// The lock is held. Those that wait for something of this pair get the error, and so does the peer,
// if it is there.
void GlooPair::give_up(const char* why) {
  if (ex_) return;
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  // An accepted connection, which Gloo's loop does not know yet: the base would take it out of it.
  if (fd_ >= 0 && state_ == LISTENING) ::close(std::exchange(fd_, -1));
  signalException(std::string("Gloo gave up a connection: ") + why);
}

std::unique_ptr<gloo::transport::Pair>& GlooPeers::createPair(int peer) {
  auto& pair = pairs_[static_cast<std::size_t>(peer)];
  pair = std::make_unique<GlooPair>(this, device_.get(), peer, getTimeout());
  return pair;
}

}  // namespace ddprun::worker_sdk
