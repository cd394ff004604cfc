#pragma once
// Gloo's connections between all ranks. Gloo's own way to make them (connectFullMesh) waits for a
// peer that has died for as long as its time-out allows; this one ends with a fence, too. Only
// gloo_backend.cc uses this.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/pair.h>
#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/ports.h"
#include "common/system/descriptors.h"
#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/gloo/gloo_relay.h"

namespace ddprun::worker_sdk {

// Lets Gloo exchange its addresses through our Store. Only gloo_backend.cc uses this.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(ddprun::Store& store, Clock::time_point deadline)
      : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    store_.set(key, {value.data(), value.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(key, left());
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys, left()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_.wait(keys, std::min(timeout, left()));
  }

 private:
  std::chrono::milliseconds left() const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  ddprun::Store& store_;
  Clock::time_point deadline_;
};

// Gloo's connections, with failures that stay failures. Gloo's own pairs throw in Gloo's thread,
// where no caller can catch it, and so end the process: if a peer is gone when its connection is
// accepted ("getpeername: Transport endpoint is not connected"), or if a pair does not wait for a
// message that arrives. Here such a pair is closed, and the operations that use it get the error.
// Only gloo_mesh.cc uses this.
class GlooPair final : public gloo::transport::tcp::Pair {
 public:
  using Pair::Pair;
  ~GlooPair() override;

  // Called by Gloo's thread.
  void handleEvents(int events) override;

  // Listens at a free port of the range instead of the one that the kernel has chosen. Call this
  // before the address is published. Throws Error(system) if no port is free.
  void move_to(const PortRange& ports);

  // Instead of connect(): uses this connection to the peer, ...
  void adopt(UniqueFd socket);
  // ... or waits for that of the peer. Throws what connect() throws.
  void await_peer();

 private:
  void replace_descriptor(UniqueFd socket, const std::function<void()>& enter);
  void give_up(const char* why);
};

// The connections of one rank with all others.
class GlooPeers final : public gloo::transport::tcp::Context {
 public:
  using Context::Context;
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;

  PortRange ports;  // Of the pairs; any: the kernel chooses.
};

}  // namespace ddprun::worker_sdk

// Gloo's connections, which Gloo does not expose: found among this process's descriptors and
// duplicated, to tune them, to close the connections to all peers at once, and to find the peer
// that an error is about. Only gloo_backend.cc uses this.

namespace gloo {
class Context;
}

namespace ddprun::worker_sdk {

struct GlooConnection {
  UniqueFd socket;      // A duplicate: shutting it down can never hit a reused descriptor.
  std::string address;  // The peer's end, as Gloo writes it in its messages.
};

// By rank; the entry of this rank is empty. `context` must be connected.
std::vector<GlooConnection> find_connections(gloo::Context& context);

// An address that Gloo gives to peers, as Gloo writes it in its messages.
std::string address_text(const std::vector<char>& address);
// The connections that exist so far and have one of `addresses` at either end, in no order.
std::vector<GlooConnection> find_connections(const std::set<std::string>& addresses);

// The rank with the address in Gloo's message, or -1.
int rank_named(const std::vector<GlooConnection>& connections, std::string_view text) noexcept;

// The first rank with a connection that has ended, or -1.
int first_ended(const std::vector<GlooConnection>& connections) noexcept;

// Makes every pending operation of ours and of our peers fail now.
void hang_up(const std::vector<GlooConnection>& connections) noexcept;

// Call this when Gloo's own descriptors are closed. Gloo sets them up so that data which the kernel
// has not sent yet is dropped with the last descriptor, and a peer that is a little behind in the
// last operation would fail; this lets the kernel finish.
void close_gently(std::vector<GlooConnection>& connections) noexcept;

}  // namespace ddprun::worker_sdk

namespace ddprun::worker_sdk {

class GlooMesh : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  // `device`: of TCP. `ports`: of this rank, which listens at one for each peer until that has
  // connected. `fence`: may be null. Throws gloo::IoException if it is raised or a peer has set an
  // empty value in place of its addresses, Error if no port is free, and what Gloo throws. Ranks of
  // other nodes that cannot be reached are connected through `relay`.
  void connect(gloo::rendezvous::Store& store, std::shared_ptr<gloo::transport::Device> device,
               const PortRange& ports, RoundFence* fence, const GlooRelay& relay);

 private:
  void require_open(const RoundFence* fence) const;
};

}  // namespace ddprun::worker_sdk
