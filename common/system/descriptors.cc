#include "common/system/descriptors.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/assert.h"

namespace ddprun {

Result<void> send_descriptors(int socket, std::string_view packet, std::span<const int> descriptors,
                              const char* what) {
  DDPRUN_ASSERT(!packet.empty() && descriptors.size() <= kDescriptorsAtOnce);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsAtOnce * sizeof(int))> control{};
  iovec bytes{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return errno_failure(what);
  return {};
}

Result<std::optional<UniqueFd>> receive_descriptor(int socket) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  char byte = 0;
  iovec bytes{&byte, 1};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return std::optional<UniqueFd>();
  if (got < 0) return errno_failure("receiving a descriptor");
  if (got == 0) return Failure{Errc::kPeerSilent, "receiving a descriptor: the sender has ended"};
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  const bool has_one = header && header->cmsg_level == SOL_SOCKET &&
                       header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int));
  if (!has_one) return Failure{Errc::kBadMessage, "receiving a descriptor: the packet has none"};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return std::optional<UniqueFd>(UniqueFd(fd));
}

}  // namespace ddprun
