#pragma once
// The daemon's port for unmodified `torchrun --rdzv-backend c10d` agents: a store that outlives
// each of them. It has no token, for torchrun has no way to give one, so that it is open to whoever
// may connect. What the agents keep in it is theirs and is never looked into. Called by
// main.cc.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/store/store_server.h"

namespace ddprun::rendezvous {

struct C10dOptions {
  std::optional<std::uint16_t> port;  // None: not offered; 0: any.
  std::string address = "127.0.0.1";
  std::vector<std::string> allow;  // Numeric; empty: everybody who reaches `address`.
};

// Null if it is not offered. Says in the log where it listens and whom it lets in.
Result<std::unique_ptr<StoreServer>> open_c10d_port(boost::asio::io_context& io,
                                                    const C10dOptions& options);

}  // namespace ddprun::rendezvous
