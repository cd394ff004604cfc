#pragma once
// Gloo's connections, with failures that stay failures. Gloo's own pairs throw in Gloo's thread,
// where nobody can catch it, and so end the process: if a peer is gone when its connection is
// accepted ("getpeername: Transport endpoint is not connected"), or if a message is none of those
// that a pair waits for. Here such a pair is closed, and those that use it get the error. Only
// gloo_mesh.cc uses this.

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/pair.h>

#include <exception>
#include <memory>

namespace ddprun::worker_sdk {

class GlooPair final : public gloo::transport::tcp::Pair {
 public:
  using Pair::Pair;
  ~GlooPair() override;

  // By Gloo's thread.
  void handleEvents(int events) override;

 private:
  void give_up(const char* why);
};

// The connections of one rank with all others.
class GlooPeers final : public gloo::transport::tcp::Context {
 public:
  using Context::Context;
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
};

}  // namespace ddprun::worker_sdk
