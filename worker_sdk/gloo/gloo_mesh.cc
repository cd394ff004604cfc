#include "worker_sdk/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/device.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::worker_sdk {

namespace {

// A wait for a connection ends when its pair is closed.
void close_all(gloo::transport::Context& peers) noexcept {
  for (int peer = 0; peer < peers.size; ++peer) {
    if (peer == peers.rank) continue;
    try {
      peers.getPair(peer)->close();
    } catch (const std::exception&) {
      // Its wait ends by the time-out.
    }
  }
}

}  // namespace

void GlooMesh::require_open(const RoundFence* fence) const {
  if (fence && fence->is_raised()) throw gloo::IoException("the round is over");
}

void GlooMesh::connect(gloo::rendezvous::Store& store,
                       std::shared_ptr<gloo::transport::Device> device, RoundFence* fence) {
  const auto peers = device->createContext(rank, size);
  peers->setTimeout(getTimeout());
  std::vector<char> mine;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto& pair = peers->createPair(peer);
    pair->setLocalRank(0);  // Of use to Gloo's own algorithms only.
    const auto bytes = pair->address().bytes();
    mine.insert(mine.end(), bytes.begin(), bytes.end());
  }
  const auto heeds = !fence ? nullptr : fence->listen([peers] { close_all(*peers); });
  try {
    store.set(std::to_string(rank), mine);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto theirs = store.get(std::to_string(peer));  // Waits for it.
      peers->getPair(peer)->connect(extractAddress(theirs, peer));
      require_open(fence);
    }
  } catch (const std::exception&) {  // Among others, of a pair that was closed before it connected.
    require_open(fence);
    throw;
  }
  device_ = std::move(device);
  transportContext_ = peers;
}

}  // namespace ddprun::worker_sdk
