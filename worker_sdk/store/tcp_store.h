#pragma once
// The client side of PyTorch's TCPStore protocol, in the dialect of PyTorch 2.2 and later.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"

namespace ddprun::worker_sdk {

struct TcpStoreOptions {
  std::string host;
  std::uint16_t port = 0;
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // How long the server may take for an answer that needs no wait.
  std::chrono::milliseconds reply_timeout = std::chrono::minutes(1);
  // Ends calls in progress, and all later ones.
  std::shared_ptr<RoundFence> fence = nullptr;
};

std::unique_ptr<Store> connect_tcp_store(const TcpStoreOptions& options);

}  // namespace ddprun::worker_sdk
