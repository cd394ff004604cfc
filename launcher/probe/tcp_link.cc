#include "launcher/probe/tcp_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/text/words.h"
#include "launcher/plan/resolve_name.h"
#include "launcher/probe/tcp_link_io.h"

namespace ddprun::doctor {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kPieces = 3;  // The best of them counts.

double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string reason(int error) {
  if (error == ECONNREFUSED) return "refused";
  if (error == ETIMEDOUT || error == EAGAIN) return "no answer";
  if (error == EHOSTUNREACH || error == ENETUNREACH) return "no route";
  if (error == EACCES || error == EPERM) return "forbidden";
  return std::strerror(error);
}

struct Target {
  sockaddr_storage address{};
  socklen_t size = 0;
};

std::optional<Target> target_of(const Address& to, Milliseconds limit) {
  std::string host = to.host;
  if (!is_numeric(host)) {
    const auto found = launcher::resolve_name(host, limit);
    if (found.empty()) return std::nullopt;
    host = found.front();
  }
  Target target;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&target.address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&target.address);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(to.port);
    target.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(to.port);
    target.size = sizeof *v6;
  }
  return target.size > 0 ? std::optional(target) : std::nullopt;
}

// 0, or errno.
int connect_within(const UniqueFd& socket, const Target& target, TimePoint end) {
  const auto* address = reinterpret_cast<const sockaddr*>(&target.address);
  if (::connect(socket.get(), address, target.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for_socket(socket, POLLOUT, end)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string own_address(const UniqueFd& socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[INET6_ADDRSTRLEN] = {};
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return "";
  const void* bytes =
      own.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr)
          : &reinterpret_cast<sockaddr_in*>(&own)->sin_addr;
  ::inet_ntop(own.ss_family, bytes, text, sizeof text);
  return text;
}

void count_segments(const UniqueFd& socket, LinkMeasurement& link) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  link.segments = info.tcpi_segs_out;
  link.segments_again = info.tcpi_total_retrans;
}

// Sends blocks for `duration`, at least one, and waits until the last of them is acknowledged by
// the server. False: not within the limit.
bool send_piece(const UniqueFd& socket, Milliseconds duration, TimePoint end,
                LinkMeasurement& link) {
  static const std::string kBlock(kLinkBlockBytes, 'x');
  const TimePoint began = Clock::now();
  const TimePoint stop = began + duration;
  std::int64_t sent = 0;
  do {
    const bool last = Clock::now() >= stop;
    if (!send_all(socket, last ? std::string(1, kEndOfPiece) : std::string(1, kBlockFollows),
                  end)) {
      return false;
    }
    if (last) break;
    if (!send_all(socket, kBlock, end)) return false;
    sent += static_cast<std::int64_t>(kBlock.size());
  } while (true);
  if (receive_exactly(socket, 1, end).empty()) return false;
  const double rate = static_cast<double>(sent) / seconds_since(began) / 1e9;
  link.gb_s = std::max(link.gb_s, rate);
  return true;
}

bool exchange(const UniqueFd& socket, const std::string& nonce, const LinkRequest& request,
              TimePoint end, LinkMeasurement& link) {
  if (!send_all(socket, hello(nonce), end)) return false;
  if (receive_exactly(socket, 1, end).empty()) return false;
  const int pieces = request.send_for.count() > 0 ? kPieces : 1;
  for (int piece = 0; piece < pieces; ++piece) {
    const Milliseconds duration = std::max<Milliseconds>(request.send_for / pieces, 1ms);
    if (!send_piece(socket, duration, end, link)) return false;
  }
  return true;
}

}  // namespace

LinkMeasurement measure_link(const Address& to, const std::string& nonce,
                             const LinkRequest& request) {
  LinkMeasurement link;
  const TimePoint end = Clock::now() + request.limit;
  const auto target = target_of(to, request.limit);
  if (!target) {
    link.error = "name unknown";
    return link;
  }
  const UniqueFd socket(
      ::socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    link.error = reason(errno);
    return link;
  }
  const TimePoint began = Clock::now();
  if (const int error = connect_within(socket, *target, end); error != 0) {
    link.error = reason(error);
    return link;
  }
  link.connect_ms = 1000 * seconds_since(began);
  link.own_address = own_address(socket);
  if (!exchange(socket, nonce, request, end, link)) {
    link.error = "connects, but data does not arrive";
  }
  count_segments(socket, link);
  return link;
}

}  // namespace ddprun::doctor
