#include "agent/process/parent_watch.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "common/system/descriptors.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// What a child of ours that has a watch on its parent reports, in order: "alive" as long as the
// parent lives; "gone" from the callback; "known" for each is_gone() that is true after that.
void watch_and_report(int parent, const UniqueFd& go, const UniqueFd& report) {
  const auto put = [&](const std::string& word) {
    [[maybe_unused]] const ssize_t n = ::write(report.get(), word.data(), word.size());
  };
  boost::asio::io_context loop(1);
  ParentWatch watch(loop);
  if (!watch.start(parent, [&] { put("gone "); })) put("cannot ");
  put(watch.is_gone() ? "early " : "alive ");
  // The parent ends before the loop has run once, as the keeper would see it.
  char byte;
  [[maybe_unused]] const ssize_t n = ::read(go.get(), &byte, 1);
  while (::getppid() == parent) ::poll(nullptr, 0, 1);
  if (watch.is_gone()) put("known ");
  loop.run_for(200ms);
  if (watch.is_gone()) put("known ");
}

TEST_CASE("Parent watch: its end is known before the loop has seen it, and reported once") {
  int go_ends[2], report_ends[2];
  REQUIRE(::pipe(go_ends) == 0);
  REQUIRE(::pipe(report_ends) == 0);
  const UniqueFd go(go_ends[0]), reading(report_ends[0]);
  UniqueFd went(go_ends[1]), writing(report_ends[1]);
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    const int own = ::getpid();
    if (::fork() == 0) {
      went.reset();
      watch_and_report(own, go, writing);
      ::_exit(0);
    }
    ::pause();  // Until it is killed.
  }
  writing.reset();
  std::string text;
  char block[256];
  const auto more = [&] {
    const ssize_t n = ::read(reading.get(), block, sizeof block);
    if (n > 0) text.append(block, static_cast<std::size_t>(n));
    return n > 0;
  };
  while (text.find(' ') == std::string::npos && more()) {
  }
  REQUIRE(::kill(parent, SIGKILL) == 0);
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  went.reset();
  while (more()) {
  }
  CHECK(text == "alive gone known known ");
}

}  // namespace
}  // namespace ddprun::agent
