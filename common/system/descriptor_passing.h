#pragma once
// Descriptors that go to another process over a non-blocking SOCK_SEQPACKET socket (SCM_RIGHTS,
// unix(7)). Used by the fork server's requests and by the store at the endpoint's port.

#include <optional>
#include <span>
#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun {

inline constexpr std::size_t kDescriptorsAtOnce = 8;

// One packet, which is not empty, with at most kDescriptorsAtOnce descriptors. Copies them: the
// caller's stay open. The Failure's code is errno's, EAGAIN if the socket is full.
Result<void> send_descriptors(int socket, std::string_view packet, std::span<const int> descriptors,
                              const char* what);

// The first descriptor of the next packet; nothing if none waits. The end of the other side is a
// Failure.
Result<std::optional<UniqueFd>> receive_descriptor(int socket);

}  // namespace ddprun
