#pragma once
// Messages between Gloo's ranks that are in progress together. Only gloo_backend*.cc use this.
//
// A message is matched by its pair of ranks and its slot. Memory must stay as it is until the wait:
// a message whose end wait() has not seen would be dropped with its buffer.

#include <cstdint>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <initializer_list>
#include <memory>
#include <vector>

#include "worker_sdk/base/operation.h"
#include "worker_sdk/gloo/gloo_watch.h"

namespace ddprun::worker_sdk {

// Numbers by which Gloo's ranks match their messages. Only gloo_backend*.cc include this.

// FNV-1a: stable between builds, unlike std::hash.
inline std::uint32_t tag_of(std::initializer_list<std::uint64_t> fields) {
  std::uint32_t hash = 2166136261u;
  for (std::uint64_t field : fields) {
    for (int i = 0; i < 8; ++i, field >>= 8) hash = (hash ^ (field & 0xff)) * 16777619u;
  }
  return hash;
}

inline std::uint32_t tag_of(const Call& call) {
  return tag_of(
      {static_cast<std::uint64_t>(call.what.kind), static_cast<std::uint64_t>(call.what.type),
       static_cast<std::uint64_t>(call.what.op), static_cast<std::uint64_t>(call.what.rank),
       call.what.count, call.what.parts, call.number});
}

// Ours are in a part of Gloo's slots that no collective of its own uses.
inline std::uint64_t message_slot(const Call& call, int from, int to, std::uint32_t number) {
  constexpr std::uint64_t kPointToPoint = 0x70;
  const std::uint32_t tag =
      tag_of({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), number,
              static_cast<std::uint64_t>(call.what.type), call.what.count});
  return kPointToPoint << 56 | std::uint64_t{tag} << 24;
}

inline std::uint64_t collective_slot(const Call& call) {
  constexpr std::uint64_t kCollective = 0x71;
  return kCollective << 56 | std::uint64_t{tag_of(call)} << 24;
}

class GlooTransfers {
 public:
  // `slot`: its lowest 24 bits are free for parts of one operation.
  GlooTransfers(gloo::Context& context, GlooWatch& watch, std::uint64_t slot,
                Clock::time_point deadline)
      : context_(context), watch_(watch), slot_(slot), deadline_(deadline) {}
  GlooTransfers(GlooTransfers&&) = default;
  ~GlooTransfers();

  void send(int peer, const void* data, std::size_t bytes, std::uint32_t part = 0);
  void recv(int peer, void* data, std::size_t bytes, std::uint32_t part = 0);

  // The waits throw gloo::Exception, at the deadline at the latest.
  void wait_received();
  void wait();  // For all messages.

 private:
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;
  void forget(Buffers& buffers);

  gloo::Context& context_;
  GlooWatch& watch_;
  const std::uint64_t slot_;
  const Clock::time_point deadline_;
  Buffers sent_, received_;
};

}  // namespace ddprun::worker_sdk
