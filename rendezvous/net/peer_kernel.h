#pragma once
// What this side's kernel knows of the kernel at the other end of a TCP connection. It answers
// while the process there stands still, which distinguishes that from a cut cable. Used by link.

#include <optional>

#include "common/time.h"

namespace ddprun::rendezvous {

struct PeerKernel {
  Milliseconds silent_for{0};  // Since its last packet, whatever that was.
  Milliseconds round_trip{0};  // The shortest of the last five minutes.
};

// Nothing if `socket` is not a TCP connection.
std::optional<PeerKernel> peer_kernel(int socket);

}  // namespace ddprun::rendezvous
