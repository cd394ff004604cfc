#include "worker_sdk/gloo/gloo_transfers.h"

#include <gloo/common/error.h>

#include <algorithm>

namespace ddprun::worker_sdk {
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
