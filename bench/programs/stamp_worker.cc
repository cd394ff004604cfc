// A worker for bench/restart.py: records when it runs, and rank 1 of the first round kills itself.
// Appends "<round> <rank> <CLOCK_MONOTONIC in ns>" to the file named by STAMPS, and "death - <ns>"
// right before the end. The round is 1 once that has happened: torchrun's restart count is another
// on each node.

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

void record(const std::string& what) {
  const int fd = ::open(std::getenv("STAMPS"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string line = what + " " + std::to_string(now_ns()) + "\n";
  if (fd < 0 || ::write(fd, line.data(), line.size()) < 0) std::_Exit(99);
  ::close(fd);
}

}  // namespace

int main() {
  const std::string death = std::string(std::getenv("STAMPS")) + ".death";
  const std::string rank = std::getenv("RANK");
  const bool first = ::access(death.c_str(), F_OK) != 0;
  record((first ? "0 " : "1 ") + rank);
  if (!first) return 0;
  if (rank != "1") return ::pause();
  ::sleep(1);  // All others are there by now; restart.py checks.
  ::close(::creat(death.c_str(), 0600));
  record("death -");
  return ::kill(::getpid(), SIGKILL);
}
