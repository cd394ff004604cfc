#pragma once
// Messages between Gloo's ranks that are under way together. Only gloo_backend*.cc use this.
//
// A message is matched by its pair of ranks and its slot. Memory must stay as it is until the wait:
// what wait() has not seen the end of would be dropped with its buffer.

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker_sdk/base/operation.h"
#include "worker_sdk/gloo/gloo_watch.h"

namespace ddprun::worker_sdk {

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

  // They throw gloo::Exception, at the deadline at the latest.
  void wait_received();
  void wait();  // For all.

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
