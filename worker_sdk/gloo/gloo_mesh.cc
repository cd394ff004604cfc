#include "worker_sdk/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>

#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/gloo/gloo_peers.h"
#include "worker_sdk/gloo/gloo_sockets.h"

namespace ddprun::worker_sdk {

namespace {

// Of all pairs of this rank, and of those of its peers that they connect to.
struct Ends {
  std::mutex mutex;
  std::set<std::string> addresses;

  void add(const std::vector<char>& address) {
    const std::lock_guard lock(mutex);
    addresses.insert(address_text(address));
  }
  std::vector<GlooConnection> connections() {
    const std::lock_guard lock(mutex);
    return find_connections(addresses);
  }
};

// A wait for a connection ends when its pair is closed. Gloo would reset the connection, and a peer
// of an older ddprun that accepts it only then would end, so we close it ourselves.
void close_all(gloo::transport::Context& peers, Ends& ends) noexcept {
  std::vector<GlooConnection> connections = ends.connections();
  for (int peer = 0; peer < peers.size; ++peer) {
    if (peer == peers.rank) continue;
    try {
      peers.getPair(peer)->close();
    } catch (const std::exception&) {
      // Its wait ends by the time-out.
    }
  }
  close_gently(connections);
}

}  // namespace

void GlooMesh::require_open(const RoundFence* fence) const {
  if (fence && fence->is_raised()) throw gloo::IoException("the round is over");
}

void GlooMesh::connect(gloo::rendezvous::Store& store,
                       std::shared_ptr<gloo::transport::Device> device, RoundFence* fence) {
  const auto tcp = std::static_pointer_cast<gloo::transport::tcp::Device>(device);
  const auto peers = std::make_shared<GlooPeers>(tcp, rank, size);
  peers->setTimeout(getTimeout());
  const auto ends = std::make_shared<Ends>();
  std::vector<char> mine;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto& pair = peers->createPair(peer);
    pair->setLocalRank(0);  // Of use to Gloo's own algorithms only.
    const auto bytes = pair->address().bytes();
    ends->add(bytes);
    mine.insert(mine.end(), bytes.begin(), bytes.end());
  }
  const auto heeds = !fence ? nullptr : fence->listen([peers, ends] { close_all(*peers, *ends); });
  try {
    store.set(std::to_string(rank), mine);
    // Those of all before the first connection: a peer that cannot connect says so in the place of
    // its addresses, and those that it connects to would wait for it.
    std::vector<std::vector<char>> addresses(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto theirs = store.get(std::to_string(peer));  // Waits for it.
      if (theirs.empty()) throw gloo::IoException(kPeerCannotConnect);
      addresses[static_cast<std::size_t>(peer)] = extractAddress(theirs, peer);
    }
    require_open(fence);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char>& address = addresses[static_cast<std::size_t>(peer)];
      ends->add(address);
      peers->getPair(peer)->connect(address);
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
