#include "rendezvous/daemon/service_notifier.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/text/figures.h"

namespace ddprun::rendezvous {
namespace {

std::string taken(const char* name) {
  std::string text = environment_variable(name);
  ::unsetenv(name);
  return text;
}

}  // namespace

ServiceNotifier ServiceNotifier::from_environment() {
  ServiceNotifier notifier;
  notifier.socket_ = taken("NOTIFY_SOCKET");
  const auto microseconds = as_number<std::int64_t>(taken("WATCHDOG_USEC"));
  const auto for_pid = as_number<std::int64_t>(taken("WATCHDOG_PID"));
  if (microseconds && *microseconds > 0 && (!for_pid || *for_pid == ::getpid())) {
    notifier.watchdog_ =
        std::chrono::duration_cast<Milliseconds>(std::chrono::microseconds(*microseconds));
  }
  return notifier;
}

void ServiceNotifier::notify(std::string_view state) const {
  sockaddr_un address{};
  if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_.front() == '@') address.sun_path[0] = '\0';  // The kernel's mark of abstract names.
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const ssize_t sent = ::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                reinterpret_cast<const sockaddr*>(&address), size);
  if (sent < 0) log::debug(to_string(errno_failure("telling the service manager")));
}

}  // namespace ddprun::rendezvous
