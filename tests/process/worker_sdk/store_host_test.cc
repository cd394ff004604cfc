// The store of rank 0 where descriptors are short: it pauses, serves on, and does not end.

#include "worker_sdk/store/store_host.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <future>
#include <set>
#include <string>

#include "ddprun/store.h"
#include "worker_sdk/base/retry.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using worker_sdk::Clock;
using worker_sdk::StoreHost;

std::set<std::string> threads_of_this_process() {
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    names.insert(task.path().filename());
  }
  return names;
}

// How often a thread gave its processor away because it had nothing to do. One that spins does not.
class Naps {
 public:
  explicit Naps(const std::string& thread)
      : status_(::open(("/proc/self/task/" + thread + "/status").c_str(), O_RDONLY | O_CLOEXEC)) {}

  bool grow_by(long count) const {
    const long before = now();
    return worker_sdk::retry_until(Clock::now() + 60s, [&] { return now() >= before + count; });
  }

 private:
  long now() const {
    char text[8192] = {};
    if (::pread(status_.get(), text, sizeof text - 1, 0) <= 0) return -1;
    const char* line = std::strstr(text, "\nvoluntary_ctxt_switches:");
    return line ? std::strtol(line + std::strlen("\nvoluntary_ctxt_switches:"), nullptr, 10) : -1;
  }
  UniqueFd status_;
};

// A store, its thread, and a limit of descriptors that is put back. Nothing is asserted meanwhile:
// UBSan needs a descriptor to look at the assertion's own objects.
struct Shortage {
  Shortage() {
    const auto before = threads_of_this_process();
    host.emplace("127.0.0.1", 0, Clock::now() + 10s);
    for (const std::string& thread : threads_of_this_process()) {
      if (!before.contains(thread)) naps.emplace(thread);
    }
    ::getrlimit(RLIMIT_NOFILE, &usual);
  }
  ~Shortage() { end(); }
  bool begin(rlim_t most) const {
    const rlimit few{most, usual.rlim_max};
    return ::setrlimit(RLIMIT_NOFILE, &few) == 0;
  }
  void end() const { ::setrlimit(RLIMIT_NOFILE, &usual); }

  std::optional<StoreHost> host;
  std::optional<Naps> naps;
  rlimit usual{};
};

bool connect_to(int socket, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST_CASE("StoreHost: without descriptors it pauses between attempts, and serves whom it has") {
  Shortage shortage;
  REQUIRE(shortage.naps);
  const auto client = connect_tcp_store("127.0.0.1", shortage.host->port(), 50s);
  client->set("before", "1");
  const UniqueFd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool short_of_them = shortage.begin(static_cast<rlim_t>(late.get()) + 1);
  const bool waits = connect_to(late.get(), shortage.host->port());  // It cannot be taken.
  const bool naps = shortage.naps->grow_by(5);
  client->set("meanwhile", "2");
  const std::string served = client->get("meanwhile", 50s);
  shortage.end();
  CHECK(short_of_them);
  CHECK(waits);
  CHECK(naps);
  CHECK(served == "2");
  const auto next = connect_tcp_store("127.0.0.1", shortage.host->port(), 50s);
  CHECK(next->get("before", 50s) == "1");
}

TEST_CASE("StoreHost: more connections than the limit allows by now do not end it") {
  Shortage shortage;
  REQUIRE(shortage.naps);
  const auto client = connect_tcp_store("127.0.0.1", shortage.host->port(), 50s);
  const auto count = [&] {
    for (int i = 0; i < 3; ++i) client->set("key", std::to_string(i));
    return client->get("key", 50s);
  };
  CHECK(std::async(std::launch::async, count).get() == "2");  // UBSan knows its objects then.
  const bool short_of_them = shortage.begin(1);               // Below what poll() is asked for.
  auto done = std::async(std::launch::async, count);
  const bool naps = shortage.naps->grow_by(5);
  shortage.end();
  CHECK(short_of_them);
  CHECK(naps);
  CHECK(done.get() == "2");
}

}  // namespace
}  // namespace ddprun
