// Agents that answer, that do not, and that are gone; and workers found without an agent.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "agent/process/proc_file.h"
#include "common/system/descriptors.h"
#include "launcher/watch/stacks.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using Catch::Matchers::Contains;

class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/watch_test_XXXXXX";
};

// A socket of this process, which is no agent: it accepts nothing.
UniqueFd listening(const std::string& path, int backlog) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(fd.get(), backlog) == 0);
  return fd;
}

// A process that is stopped, and killed at the end.
class StoppedProcess {
 public:
  template <class Body>
  explicit StoppedProcess(Body body) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body();
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  ~StoppedProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StoppedProcess(const StoppedProcess&) = delete;
  StoppedProcess& operator=(const StoppedProcess&) = delete;
  int pid() const { return pid_; }

 private:
  const int pid_;
};

RunRecord running() {
  RunRecord record{.run_id = "stood"};
  record.launcher.pid = 4711;
  return record;
}

TEST_CASE("Mute agents: the sentence names launcher, agents and their states", "[agents]") {
  CHECK(mute_text(running(), {{4712, 'T'}}, 1) ==
        "run stood is in progress (launcher 4711), but its agent (4712, stopped by a signal) does "
        "not answer");
  CHECK(mute_text(running(), {{4712, 'D'}, {4713, 'S'}}, 2) ==
        "run stood is in progress (launcher 4711), but its agents (4712, in uninterruptible sleep; "
        "4713) do not answer");
  CHECK(mute_text(running(), {{4712, 't'}}, 3) ==
        "run stood is in progress (launcher 4711), but 1 of its 3 agents (4712, held by a "
        "debugger) does not answer");
  RunRecord odd = running();
  odd.run_id = "a b\x1b[2J";
  CHECK_THAT(mute_text(odd, {{0, '?'}}, 1),
             Contains("run 'a b?[2J' is") && Contains("but its agent does not answer"));
}

TEST_CASE("Mute agents: one that is stopped is told from one that is gone", "[agents]") {
  const Folder folder;
  const StoppedProcess agent([&] {
    const int held = listening(folder / "node-0", 16).release();
    (void)held;
  });
  { const UniqueFd gone = listening(folder / "node-1", 16); }
  const auto answers =
      query_windows({folder / "node-0", folder / "node-1", folder / "node-2"}, "where");
  REQUIRE(answers.size() == 3);
  CHECK(answers[0].is_mute());
  CHECK(answers[0].pid == agent.pid());
  CHECK_FALSE(answers[1].is_mute());
  CHECK_FALSE(answers[2].is_mute());
  PastRun run{.name = "", .record = running(), .state = RunState::kRunning};
  CHECK_THAT(mute_text(run, answers),
             Contains("(" + std::to_string(agent.pid()) + ", stopped by a signal)"));
  CHECK(mute_text(run, {answers[1], answers[2]}).empty());
}

TEST_CASE("Mute agents: a socket that takes no more connections is no other case", "[agents]") {
  const Folder folder;
  const StoppedProcess agent([&] {
    const int held = listening(folder / "node-0", 0).release();
    (void)held;
  });
  const UniqueFd first(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (folder / "node-0").copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::connect(first.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const auto answers = query_windows({folder / "node-0"}, "where");
  CHECK(answers[0].is_mute());
  // Its pid is found as a child of the launcher that has the launcher's name.
  PastRun run{.name = "", .record = running(), .state = RunState::kRunning};
  run.record.launcher.pid = ::getpid();
  CHECK_THAT(mute_text(run, answers), Contains("(" + std::to_string(agent.pid()) + ", stopped"));
}

// A folder like /proc, of processes that there are not.
class FakeProc {
 public:
  void add(int pid, int parent, int started, const std::string& environment, char state = 'S') {
    const std::string process = root() + "/" + std::to_string(pid);
    std::filesystem::create_directory(process);
    std::ofstream(process + "/stat")
        << pid << " (python3) " << state << " " << parent << " 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 "
        << started << " 0 0 0\n";
    std::string text = environment;
    for (char& letter : text) letter = letter == ' ' ? '\0' : letter;
    std::ofstream(process + "/environ") << text << '\0';
  }
  std::string root() const { return folder_ / "."; }

 private:
  Folder folder_;
};

TEST_CASE("Worker of a rank: found by its environment below the launcher, without an agent",
          "[agents]") {
  FakeProc proc;
  constexpr int kLauncher = 100, kAgent = 101;
  proc.add(kLauncher, 1, 1, "HOME=/root");
  proc.add(kAgent, kLauncher, 2, "HOME=/root");
  proc.add(110, kAgent, 3, "DDPRUN_JOB=a RANK=0");
  proc.add(111, kAgent, 3, "DDPRUN_JOB=a RANK=1");
  proc.add(112, 111, 4, "DDPRUN_JOB=a RANK=1");  // A child of the worker.
  proc.add(120, 1, 5, "DDPRUN_JOB=b RANK=1");    // Of another run.
  proc.add(121, kAgent, 5, "RANK=7");            // Of no run.
  CHECK(worker_started_as(kLauncher, 0, proc.root()) == 110);
  CHECK(worker_started_as(kLauncher, 1, proc.root()) == 111);
  CHECK(worker_started_as(kLauncher, 7, proc.root()) == 0);
  CHECK(worker_started_as(kLauncher, 10, proc.root()) == 0);
  proc.add(113, kLauncher, 9, "DDPRUN_JOB=a RANK=1");  // What a dead worker left behind.
  CHECK(worker_started_as(kLauncher, 1, proc.root()) == 111);
  proc.add(114, kAgent, 8, "DDPRUN_JOB=a RANK=0");
  proc.add(110, kAgent, 3, "DDPRUN_JOB=a RANK=0", 'Z');  // Dead, and replaced.
  CHECK(worker_started_as(kLauncher, 0, proc.root()) == 114);
}

}  // namespace
}  // namespace ddprun::launcher
