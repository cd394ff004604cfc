#include "common/system/descriptors.h"

#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "common/assert.h"
#include "common/system/folder.h"

namespace ddprun {
namespace {

// Before Linux 5.9 they are looked up one by one, or guessed where /proc is not mounted.
void for_each_from(int first, const std::function<void(int)>& act) {
  constexpr int kGuess = 65536;
  const Listing open = names_in("/proc/self/fd");
  for (const std::string& name : open.names) {
    if (const int fd = std::atoi(name.c_str()); fd >= first) act(fd);
  }
  for (int fd = first; open.error != 0 && fd < kGuess; ++fd) act(fd);
}

}  // namespace

void close_from(int first) {
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  for_each_from(first, [](int fd) { ::close(fd); });
}

void close_on_exec_from(int first) {
  if (::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  for_each_from(first, [](int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); });
}

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
