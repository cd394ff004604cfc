// A worker for bench/endurance.py: steps in lockstep with its peers and writes each step down.
//
// Every 20 ms an all_reduce over all ranks; then "<step> <CLOCK_MONOTONIC in ns>" goes to the file
// <STEPS>/<MASTER_PORT>.<rank>: no two rounds share a store, so the port names the round. The first
// line is "pid world_size restart_count". Ends with 0, on all ranks at the same step, once
// <STEPS>/stop exists.

#include <ddprun/error.h>
#include <ddprun/process_group.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStepMs = 20;

void write_line(int fd, const std::string& line) {
  if (::write(fd, line.data(), line.size()) < 0) std::_Exit(99);
}

int step_until_stopped(const std::string& folder) {
  auto group = ddprun::ProcessGroup::init();
  const std::string path =
      folder + "/" + std::getenv("MASTER_PORT") + "." + std::to_string(group.rank());
  // Exclusive: a rank that runs twice in one round must show.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return std::fprintf(stderr, "%s is there already\n", path.c_str()), 98;
  write_line(fd, std::to_string(::getpid()) + " " + std::to_string(group.world_size()) + " " +
                     std::to_string(group.restart_count()) + "\n");
  for (long step = 0;; ++step) {
    ::poll(nullptr, 0, kStepMs);  // It computes.
    float stop = ::access((folder + "/stop").c_str(), F_OK) == 0 ? 1 : 0;
    group.all_reduce(ddprun::buffer(&stop, 1), ddprun::ReduceOp::max);
    const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    write_line(fd, std::to_string(step) + " " + std::to_string(now) + "\n");
    if (stop > 0) return 0;
  }
}

}  // namespace

int main() {
  const char* folder = std::getenv("STEPS");
  if (!folder) return std::fputs("STEPS names no folder\n", stderr), 2;
  try {
    return step_until_stopped(folder);
  } catch (const ddprun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 97;
  }
}
