#pragma once
// The user at the other end of a TCP connection from this machine, as the kernel has it, for both
// stores, which have no token that PyTorch's clients could give. And the process that has a port.
//
// The kernel is queried by NETLINK_SOCK_DIAG, one message and one answer per connection, without
// waiting. If that is forbidden or missing (some containers), its tables in /proc/net are read,
// which takes time in proportion to the connections of the machine.

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/system/descriptors.h"

namespace ddprun {

// One end of a TCP connection as the kernel describes it.
struct SocketFacts {
  int state = 0;            // TCP_ESTABLISHED, ...
  uid_t user = 0;           // Its creator, as numbered in our user namespace.
  std::uint64_t inode = 0;  // 0: closed by its program. Then the user is unknown and given as 0.
};

enum class PeerUser {
  kOurs,       // This user's, or root's.
  kOthers,     // Another user's of this machine.
  kGone,       // The program has closed it already; its user cannot be found any more.
  kElsewhere,  // No socket of this machine (or of this network namespace).
  kUnknown,    // The kernel does not answer at all.
};

class PeerUsers {
 public:
  // `proc_net` is /proc/net; `query_kernel` false leaves only that (for tests).
  explicit PeerUsers(std::string_view proc_net = "/proc/net", bool query_kernel = true);

  // Of `connection`, which was accepted and is checked before anything is read from it.
  PeerUser look_up(int connection);

  // Whether that takes microseconds, however many connections the machine has.
  bool is_quick() const { return way_ == Way::kKernel; }

 private:
  enum class Way { kKernel, kTables, kNone };

  Way way_ = Way::kNone;
  std::string_view proc_net_;
  UniqueFd kernel_;
};

// The user of a socket, for a process that runs as `self`.
PeerUser peer_user_of(const SocketFacts& facts, uid_t self);

// From a line of /proc/net/tcp or tcp6: the facts, if it is the socket from `local` to `remote`.
// Addresses as they stand there: "0100007F:1F90".
std::optional<SocketFacts> facts_of_line(std::string_view line, std::string_view local,
                                         std::string_view remote);

// Which process holds a TCP port of this machine, for the error message if the port is taken:
// "python3 (pid 4711)", or nothing if no such process can be found or looked into. Reads /proc.
std::string port_owner(std::uint16_t port);

}  // namespace ddprun
