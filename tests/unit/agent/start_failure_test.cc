#include "agent/node/verdict_file.h"

#include <catch2/catch.hpp>
#include <cerrno>

namespace ddprun::agent {
namespace {

WorkerDeath death(int error, Limits limits = {64, 20},
                  std::optional<std::int64_t> tasks = std::nullopt) {
  errno = error;
  return start_failure(errno_failure("starting local rank 3: x"), limits, 64, tasks);
}

TEST_CASE("Start failure: what is short is named with its limit and what is needed", "[agent]") {
  CHECK(death(EMFILE).fault == Fault::kNoDescriptors);
  CHECK(death(EMFILE).exit_code == 1);
  CHECK(
      death(EMFILE).detail ==
      "starting local rank 3: x: Too many open files; ulimit -n is 64, and ddprun needs about 5 a "
      "worker, 320 for 64");
  CHECK(death(EAGAIN).fault == Fault::kNoProcesses);
  CHECK(death(EAGAIN).exit_code == 1);
  CHECK(death(EAGAIN).detail.find("ulimit -u is 20 ") != std::string::npos);
  CHECK(death(EAGAIN, {}).detail.find("pids.max") != std::string::npos);
  // Of two limits the smaller is named.
  const std::string by_cgroup = death(EAGAIN, {64, 20}, 12).detail;
  CHECK(by_cgroup.find("the pids.max of a cgroup is 12 ") != std::string::npos);
  CHECK(by_cgroup.find("ulimit -u") == std::string::npos);
  CHECK(death(ENOMEM).fault == Fault::kNoMemory);
}

TEST_CASE("Start failure: a program that cannot be executed is the user's, with a shell's code",
          "[agent]") {
  for (const int error : {ENOENT, EACCES, ENOEXEC}) {
    CHECK(death(error).fault == Fault::kCannotStart);
    CHECK(death(error).exit_code == 127);
    CHECK(death(error).detail.find("ulimit") == std::string::npos);
  }
}

}  // namespace
}  // namespace ddprun::agent
