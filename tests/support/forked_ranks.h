#pragma once
// Ranks of a job as child processes of the test, which may kill or stop them. Each child reports
// what it threw through a pipe.

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace ddprun::test {

// Gives this process, which must not have threads yet, a /dev/shm of its own, where root may: then
// nothing that others do there is taken for ours.
inline void own_shared_memory() {
  if (::unshare(CLONE_NEWNS) != 0) return;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
  [[maybe_unused]] const int mounted = ::mount("shm", "/dev/shm", "tmpfs", 0, nullptr);
}

inline std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path());
  }
  return names;
}

struct Report {
  bool came =
      false;  // False: the process ended without a word, or was still silent at the deadline.
  bool threw = false;
  ErrorKind kind = ErrorKind::system;
  int peer = -1;
  std::chrono::milliseconds waited{0};
  std::string text;
};

class ForkedRanks {
 public:
  // `body` runs in each child; `ready` lets the child notify the parent that it has come to a
  // point.
  using Body = std::function<void(ProcessGroup& group, const std::function<void()>& ready)>;

  // Runs in each child, too: may set its environment.
  using Prepare = std::function<InitOptions(int rank)>;

  ForkedRanks(int world_size, const Prepare& prepare, const Body& body) {
    for (int rank = 0; rank < world_size; ++rank) start(rank, prepare, body);
  }
  ForkedRanks(const Ranks& ranks, const Body& body)
      : ForkedRanks(
            ranks.world_size, [&](int rank) { return ranks.options(directory_ / "store", rank); },
            body) {}
  ~ForkedRanks() {
    for (Child& child : children_) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      ::close(child.pipe);
    }
  }
  ForkedRanks(const ForkedRanks&) = delete;

  void signal(int rank, int number) {
    ::kill(children_[static_cast<std::size_t>(rank)].pid, number);
  }

  // Until the rank has stopped itself; false: it has ended.
  bool wait_stopped(int rank) {
    const auto pid = static_cast<id_t>(children_[static_cast<std::size_t>(rank)].pid);
    siginfo_t info{};
    while (::waitid(P_PID, pid, &info, WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    return info.si_code == CLD_STOPPED;
  }

  // False: it did not become ready in time.
  bool wait_ready(int rank) { return read_line(rank) == "ready"; }

  Report report(int rank) {
    const std::string line = read_line(rank);
    Report report;
    report.came = !line.empty();
    report.threw = line.starts_with("threw ");
    if (!report.threw) return report;
    int kind = 0, peer = 0, waited = 0, used = 0;
    std::sscanf(line.c_str(), "threw %d %d %d %n", &kind, &peer, &waited, &used);
    report.kind = static_cast<ErrorKind>(kind);
    report.peer = peer;
    report.waited = std::chrono::milliseconds(waited);
    report.text = line.substr(static_cast<std::size_t>(used));
    return report;
  }

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
  };

  void start(int rank, const Prepare& prepare, const Body& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const auto print = [&](const std::string& line) {
        [[maybe_unused]] const auto written = ::write(ends[1], line.data(), line.size());
      };
      try {
        {
          ProcessGroup group = ProcessGroup::init(prepare(rank));
          body(group, [&] { print("ready\n"); });
        }
        print("returned\n");
      } catch (const Error& error) {
        print("threw " + std::to_string(error.code().value()) + " " +
              std::to_string(error.where().peer) + " " +
              std::to_string(error.where().waited.count()) + " " + error.what() + "\n");
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    children_.push_back({pid, ends[0]});
  }

  // The next line of a child; empty at its end, or after a minute.
  std::string read_line(int rank) {
    const int pipe = children_[static_cast<std::size_t>(rank)].pipe;
    std::string line;
    for (;;) {
      pollfd entry{pipe, POLLIN, 0};
      char c = 0;
      if (::poll(&entry, 1, 60000) != 1 || ::read(pipe, &c, 1) != 1) return line;
      if (c == '\n') return line;
      line += c;
    }
  }

  TemporaryDirectory directory_;
  std::vector<Child> children_;
};

}  // namespace ddprun::test
