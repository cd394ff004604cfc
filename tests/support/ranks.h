#pragma once
// Ranks of a job as threads of the test program, joined through a file store of their own.

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/system/folder.h"
#include "ddprun/ddprun.h"

namespace ddprun::test {

// A directory that is gone when the test is over.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* place = std::getenv("TMPDIR");
    path_ = std::string(place ? place : "/tmp") + "/ddprun_test_XXXXXX";
    if (!::mkdtemp(path_.data())) std::abort();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { remove_tree(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Ranks {
  int world_size = 2;
  std::string backend = "auto";
  std::chrono::milliseconds op_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds init_timeout = std::chrono::seconds(60);
  // By rank: the host that it reports. Empty: all on this machine, or for "cpu" on two hosts.
  std::vector<std::string> hosts = {};

  InitOptions options(const std::string& store, int rank) const {
    InitOptions result;
    result.init_method = "file://" + store;
    result.backend = backend;
    if (backend == "cpu") result.host = rank < (world_size + 1) / 2 ? "first" : "second";
    if (!hosts.empty()) result.host = hosts[static_cast<std::size_t>(rank)];
    result.rank = rank;
    result.world_size = world_size;
    result.op_timeout = op_timeout;
    result.init_timeout = init_timeout;
    return result;
  }

  // What each rank threw; nothing for one that returned. `body` must not use Catch2: it has no
  // threads.
  std::vector<std::optional<Error>> run(const std::function<void(ProcessGroup&)>& body) const {
    const TemporaryDirectory directory;
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(world_size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ProcessGroup group = ProcessGroup::init(options(directory / "store", rank));
          body(group);
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
};

// "all well", or the first error.
inline std::string outcome(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) {
    if (error) return error->what();
  }
  return "all well";
}

}  // namespace ddprun::test
