#include "rendezvous/net/peer_kernel.h"

// Not <netinet/tcp.h>: its tcp_info has no tcpi_min_rtt. Both together do not compile.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace ddprun::rendezvous {

std::optional<PeerKernel> peer_kernel(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  const std::chrono::microseconds round_trip(info.tcpi_min_rtt == ~0u ? 0 : info.tcpi_min_rtt);
  return PeerKernel{Milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv)),
                    std::chrono::duration_cast<Milliseconds>(round_trip)};
}

}  // namespace ddprun::rendezvous
