// The threads that a group of the backend "gloo" has beside those of the program.

#include <sys/types.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>

#include "tests/support/ranks.h"

namespace ddprun {
namespace {

// The signals that each thread of this name blocks, as the kernel has them: signal n is bit n - 1.
std::map<std::string, std::vector<std::uint64_t>> blocked_by_name() {
  std::map<std::string, std::vector<std::uint64_t>> result;
  const std::string tasks = "/proc/self/task/";
  for (const std::string& number : worker_sdk::names_in(tasks).names) {
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

// What is wrong with them, in a group of two ranks.
std::string complaints() {
  std::string text;
  int gloos = 0, others = 0;
  for (const auto& [name, masks] : blocked_by_name()) {
    const bool is_gloos = name.starts_with("ddprun-gloo-");
    if (!is_gloos && name != "ddprun-watch" && name != "ddprun-doubt") continue;
    for (const std::uint64_t mask : masks) {
      const auto blocks = [&](int signal) { return (mask >> (signal - 1) & 1) != 0; };
      for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE}) {
        if (!blocks(signal)) text += name + " gets signal " + std::to_string(signal) + "; ";
      }
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        if (blocks(fault)) text += name + " blocks signal " + std::to_string(fault) + "; ";
      }
      ++(is_gloos ? gloos : others);
    }
  }
  const bool all = gloos == 2 && others == 4;  // A rank has one of Gloo's, and two of ours.
  if (!all) text += std::to_string(gloos) + " of Gloo's and " + std::to_string(others) + " of ours";
  return text;
}

TEST_CASE("Gloo threads: no handler of the program runs in them, but for faults of their own") {
  std::string found;
  const auto errors = test::Ranks{.world_size = 2, .backend = "gloo"}.run([&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) {
      // A thread that has not run yet blocks all signals, and one that ends is still listed.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      do {
        found = complaints();
        std::this_thread::yield();
      } while (!found.empty() && std::chrono::steady_clock::now() < until);
    }
    group.barrier();
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(found == "");
}

}  // namespace
}  // namespace ddprun
