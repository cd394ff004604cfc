#pragma once
// Two connections that carry each other's bytes until both have ended: what a relay is at each of
// its three places (docs/protocol.md, "Relayed streams"). Each direction has a buffer of its own;
// while it is full its source is not read, so that a slow reader slows its writer and no other
// stream. Used by the RelayThread and by relay_dial, on their loop's thread.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/error.h"
#include "rendezvous/net/link.h"

namespace ddprun::rendezvous {

constexpr std::size_t kSpliceBufferBytes = 128 << 10;  // Of one direction.

// Lives until both ends have closed, one has failed, or half a stream has been silent for too long
// after the other half ended. `on_bytes` is called with the number of bytes of each write.
void splice(boost::asio::io_context& io, Released a, Released b,
            std::function<void(std::uint64_t)> on_bytes = nullptr);

// A socket of this process as an end: `fd` does not block and speaks without TLS.
Released plain_end(UniqueFd fd);

}  // namespace ddprun::rendezvous
