// Not with UBSan, which looks at objects through pipes: there are no descriptors for them here.
#ifndef __SANITIZE_ADDRESS__

#include "agent/window/window.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/system/descriptors.h"
#include "tests/support/ranks.h"

namespace ddprun::agent {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// No descriptor is free while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    const UniqueFd next(::dup(0));
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{static_cast<rlim_t>(next.get()), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

UniqueFd idle_visitor(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

UniqueFd visitor(const std::string& path) {
  UniqueFd fd = idle_visitor(path);
  REQUIRE(::send(fd.get(), "where\n", 6, 0) == 6);
  return fd;
}

TEST_CASE("Window: who came while there were no descriptors is answered later") {
  const test::TemporaryDirectory folder;
  boost::asio::io_context loop;
  int queries = 0;
  auto window = Window::open(loop, folder / "node-0",
                             [&](const std::string& question, const Window::Reply& reply) {
                               ++queries;
                               reply("here, " + question);
                             });
  REQUIRE(window.has_value());
  const UniqueFd one = visitor(folder / "node-0");
  {
    const NoDescriptors none;
    REQUIRE(loop.run_one_for(kPatience) == 1);  // It cannot be let in.
    CHECK(queries == 0);
  }
  char text[64] = {};
  ssize_t got = 0;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (got <= 0 && std::chrono::steady_clock::now() < until) {
    if (loop.run_one_for(kPatience) == 0) break;
    got = ::recv(one.get(), text, sizeof text - 1, MSG_DONTWAIT);
  }
  CHECK(std::string(text) == "here, where");
}

TEST_CASE("Window: visitors that ask nothing keep no question out") {
  const test::TemporaryDirectory folder;
  boost::asio::io_context loop;
  auto window = Window::open(
      loop, folder / "node-0",
      [](const std::string& question, const Window::Reply& reply) { reply("here, " + question); });
  REQUIRE(window.has_value());
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(idle_visitor(folder / "node-0"));
  const UniqueFd one = visitor(folder / "node-0");
  std::string text;
  bool open = true;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (open && std::chrono::steady_clock::now() < until) {
    loop.run_one_for(std::chrono::milliseconds(10));
    char block[64];
    const ssize_t got = ::recv(one.get(), block, sizeof block, MSG_DONTWAIT);
    if (got > 0) text.append(block, static_cast<std::size_t>(got));
    open = got > 0 || (got < 0 && errno == EAGAIN);
  }
  CHECK(text == "here, where");
}

}  // namespace
}  // namespace ddprun::agent

#endif
