// A worker for bench/restart.py: says when it runs, and rank 1 of the first attempt kills itself.
// Appends "<restart count> <rank> <CLOCK_MONOTONIC in ns>" to the file named by STAMPS, and
// "death <ns>" right before the end.

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

long long now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void say(const std::string& what) {
  const int fd = ::open(std::getenv("STAMPS"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string line = what + " " + std::to_string(now_ns()) + "\n";
  if (fd < 0 || ::write(fd, line.data(), line.size()) < 0) std::_Exit(99);
  ::close(fd);
}

}  // namespace

int main() {
  const std::string attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const std::string rank = std::getenv("RANK");
  say(attempt + " " + rank);
  if (attempt != "0") return 0;
  if (rank != "1") return ::pause();
  ::sleep(1);  // All others are there by now; restart.py checks.
  say("death");
  return ::kill(::getpid(), SIGKILL);
}
