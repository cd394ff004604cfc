#include "worker_sdk/join/spawn_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "common/worker_link.h"
#include "ddprun/error.h"
#include "worker_sdk/worker/crash_text.h"

namespace ddprun::worker_sdk {
namespace {

// What a launcher said to the parent is not for the children.
constexpr const char* kParents[] = {"DDPRUN_PROGRESS", worker_link::kVariable,
                                    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT",
                                    "TORCHELASTIC_RUN_ID"};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void take_seat(const ChildSeat& seat, std::uint16_t port) {
  for (const char* name : kParents) ::unsetenv(name);
  for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(seat.rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(seat.size));
  set("GROUP_RANK", "0");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");  // The parent hosts it.
}

void say(int fd, std::string text) {
  text.resize(std::min(text.size(), kWordsMax));
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    at += static_cast<std::size_t>(n);
  }
}

bool is_victims(const Error& error) {
  return error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted ||
         error.kind() == ErrorKind::timed_out;
}

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::cout.flush();
  ::_exit(code);
}

// The port; 0: the parent is gone.
std::uint16_t read_port(int fd) {
  std::uint16_t port = 0;
  ssize_t n = 0;
  while ((n = ::read(fd, &port, sizeof port)) < 0 && errno == EINTR) {
  }
  return n == sizeof port ? port : 0;
}

}  // namespace

void run_child(const ChildSeat& seat, const std::function<void(int)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != seat.parent) ::_exit(1);
  ::signal(SIGTERM, SIG_DFL);  // A handler of the parent's is not for us.
  const std::uint16_t port = read_port(seat.port);
  if (port == 0) ::_exit(1);
  take_seat(seat, port);
  try {
    body(seat.rank);
  } catch (const Error& error) {
    say(seat.report, (is_victims(error) ? kVictim : kCulprit) + std::string(error.what()));
    leave(1);
  } catch (...) {
    say(seat.report, kCulprit + describe_current_exception());
    leave(1);
  }
  leave(0);
}

}  // namespace ddprun::worker_sdk
