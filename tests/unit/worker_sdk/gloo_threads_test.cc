// The threads that the SDK has beside those of the program: of a group of the backend "gloo", of a
// work queue, a store and a writer of checkpoints.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>

#include "common/system/descriptors.h"
#include "tests/support/ranks.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/group/work_queue.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun {
namespace {

// The signals that each thread of this name blocks, as the kernel has them: signal n is bit n - 1.
std::map<std::string, std::vector<std::uint64_t>> blocked_by_name() {
  std::map<std::string, std::vector<std::uint64_t>> result;
  const std::string tasks = "/proc/self/task/";
  for (const std::string& number : names_in(tasks).names) {
    std::ifstream file(tasks + number + "/status");
    std::string line, name;
    while (std::getline(file, line)) {
      if (line.starts_with("Name:\t")) name = line.substr(6);
      if (!line.starts_with("SigBlk:\t")) continue;
      result[name].push_back(std::stoull(line.substr(8), {}, 16));
    }
  }
  return result;
}

// What is wrong with those that begin so; there must be as many of them.
using Expected = std::map<std::string, int>;
std::string complaints(Expected expected) {
  std::string text;
  for (const auto& [name, masks] : blocked_by_name()) {
    const auto begins = [name = name](const auto& one) { return name.starts_with(one.first); };
    const auto found = std::find_if(expected.begin(), expected.end(), begins);
    if (found == expected.end()) continue;
    for (const std::uint64_t mask : masks) {
      const auto blocks = [&](int signal) { return (mask >> (signal - 1) & 1) != 0; };
      for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE}) {
        if (!blocks(signal)) text += name + " gets signal " + std::to_string(signal) + "; ";
      }
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        if (blocks(fault)) text += name + " blocks signal " + std::to_string(fault) + "; ";
      }
      --found->second;
    }
  }
  for (const auto& [name, lacking] : expected) {
    if (lacking != 0) text += name + ": " + std::to_string(lacking) + " too few; ";
  }
  return text;
}

// A thread that has not run yet blocks all signals, and one that ends is still listed.
std::string complaints_in_the_end(const Expected& expected) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::string text;
  do {
    text = complaints(expected);
    std::this_thread::yield();
  } while (!text.empty() && std::chrono::steady_clock::now() < until);
  return text;
}

TEST_CASE("Gloo threads: no handler of the program runs in them, but for faults of their own") {
  std::string found;
  const auto errors = test::Ranks{.world_size = 2, .backend = "gloo"}.run([&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) {
      found =
          complaints_in_the_end({{"ddprun-gloo-", 2}, {"ddprun-watch", 2}, {"ddprun-doubt", 2}});
    }
    group.barrier();
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(found == "");
}

TEST_CASE("SDK threads: no handler of the program runs in those of a queue, a store and a writer") {
  const test::TemporaryDirectory directory;
  worker_sdk::WorkQueue queue;
  queue.start();
  const worker_sdk::StoreHost store("127.0.0.1", 0,
                                    worker_sdk::Clock::now() + std::chrono::seconds(30));
  // The writer waits for a reader of its file.
  const std::string folder = directory / "checkpoint-000001-step-1";
  const std::string file = folder + "/rank-1.bin.tmp";
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  std::string found;
  const auto errors = test::Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    const bool waits = group.rank() == 1;
    CheckpointWriter writer(group, directory / (waits ? "" : "empty"));
    float value = 1;
    writer.save_async(1, std::vector{even_piece(group, "value", buffer(&value, 1))});
    if (!waits) return;
    found = complaints_in_the_end({{"ddprun-queue", 1}, {"ddprun-store", 1}, {"ddprun-save", 1}});
    const UniqueFd reader(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(found == "");
}

}  // namespace
}  // namespace ddprun
