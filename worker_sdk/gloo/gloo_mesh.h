#pragma once
// Gloo's connections between all ranks. Gloo's own way to make them (connectFullMesh) waits for a
// peer that has died for as long as its time-out allows; this one ends with a fence, too. Only
// gloo_backend.cc uses this.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>

#include <memory>

#include "worker_sdk/base/round_fence.h"

namespace ddprun::worker_sdk {

class GlooMesh : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  // `device`: of TCP. `fence`: may be null. Throws gloo::IoException if it is raised or a peer has
  // set an empty value in place of its addresses, and what Gloo throws.
  void connect(gloo::rendezvous::Store& store, std::shared_ptr<gloo::transport::Device> device,
               RoundFence* fence);

 private:
  void require_open(const RoundFence* fence) const;
};

}  // namespace ddprun::worker_sdk
