#include "worker_sdk/gloo_transfers.h"

#include <gloo/common/error.h>

#include <algorithm>

namespace ddprun::worker_sdk {
namespace {

bool is_complete(gloo::transport::UnboundBuffer& buffer) {
  try {
    return buffer.waitRecv(std::chrono::milliseconds(1));
  } catch (const gloo::Exception&) {
    return false;
  }
}

}  // namespace

GlooTransfers::~GlooTransfers() {
  for (const auto& buffer : received_) watch_.remove(*buffer);
}

void GlooTransfers::send(int peer, const void* data, std::size_t bytes, std::uint32_t part) {
  if (bytes == 0) return;
  // Gloo's buffers serve both directions and so want memory that may be written.
  sent_.push_back(context_.createUnboundBuffer(const_cast<void*>(data), bytes));
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
    // The message may have been there when its sender was lost: then the second look finds it.
    if (buffer->waitRecv(left_until(deadline_))) continue;
    if (!is_complete(*buffer)) throw gloo::IoException("the sender of a message is gone");
  }
  for (const auto& buffer : received_) watch_.remove(*buffer);
  received_.clear();
}

void GlooTransfers::wait() {
  wait_received();
  for (const auto& buffer : sent_) {
    if (!buffer->waitSend(left_until(deadline_))) throw gloo::IoException("send was aborted");
  }
  sent_.clear();
}

}  // namespace ddprun::worker_sdk
