#include "rendezvous/daemon/service_notifier.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "common/system/descriptors.h"

namespace ddprun::rendezvous {
namespace {

// A service manager that listens under an abstract name, which needs no file.
struct ServiceManager {
  ServiceManager() : fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "ddprun-test-" + std::to_string(::getpid());
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(size)) == 0);
    ::setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
  }

  std::string received() const {
    std::array<char, 256> text{};
    const ssize_t size = ::recv(fd.get(), text.data(), text.size(), MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(text.data(), static_cast<std::size_t>(size));
  }

  UniqueFd fd;
};

TEST_CASE("Service notifier: what it says arrives, and nobody below inherits the socket",
          "[service]") {
  const ServiceManager manager;
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  const auto notifier = ServiceNotifier::from_environment();
  CHECK(std::getenv("NOTIFY_SOCKET") == nullptr);
  CHECK(notifier.watchdog() == Milliseconds(30'000));
  notifier.notify("READY=1");
  CHECK(manager.received() == "READY=1");
}

TEST_CASE("Service notifier: where nobody asked, nothing is said", "[service]") {
  ::setenv("WATCHDOG_USEC", "soon", 1);
  const auto notifier = ServiceNotifier::from_environment();
  CHECK_FALSE(notifier.watchdog().has_value());
  notifier.notify("READY=1");
  ::setenv("WATCHDOG_USEC", "1000", 1);
  ::setenv("WATCHDOG_PID", "1", 1);  // Meant for another process.
  CHECK_FALSE(ServiceNotifier::from_environment().watchdog().has_value());
}

}  // namespace
}  // namespace ddprun::rendezvous
