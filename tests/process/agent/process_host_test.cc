#include "agent/workers/posix_process_host.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <iterator>
#include <map>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "agent/process/roster.h"
#include "tests/process/agent/processes.h"
#include "tests/support/loop.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

const std::string kWorker = AGENT_TEST_WORKER;

// A host with a loop, and the record of what ended.
struct Stage {
  boost::asio::io_context loop{1};
  test::Mark mark;
  PosixProcessHost host{loop};
  std::map<int, WorkerDeath> exits;
  int calls = 0;
  UniqueFd words, words_end;

  Stage() {
    host.on_exit = [this](const WorkerDeath& exit, auto) {
      exits[exit.local_rank] = exit;
      ++calls;
    };
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    words.reset(ends[0]);
    words_end.reset(ends[1]);
  }

  int spawn(int local_rank, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), kWorker);
    return host.spawn({local_rank, std::move(arguments), {mark.variable()}, words_end.get(), -1})
        .value();
  }

  bool soon(int local_rank, std::vector<std::string> argv) {
    WorkerEnds ends;
    ends.stdout_end.reset(::fcntl(words_end.get(), F_DUPFD_CLOEXEC, 0));
    WorkerSpec spec{.local_rank = local_rank, .argv = std::move(argv), .environment = {}};
    spec.environment = {mark.variable()};
    return host.spawn_soon(std::move(spec), std::move(ends));
  }

  // Until one worker has reported it.
  void wait_ready(int workers = 1) {
    char line[6];
    for (int i = 0; i < workers; ++i) {
      pollfd readable{words.get(), POLLIN, 0};
      int ready = 0;
      while ((ready = ::poll(&readable, 1, 20'000)) < 0 && errno == EINTR) {
      }
      REQUIRE(ready == 1);
      ssize_t got = 0;
      while ((got = ::read(words.get(), line, sizeof line)) < 0 && errno == EINTR) {
      }
      REQUIRE(got == 6);
    }
  }

  // Runs the loop until `done`, for at most 20 s.
  template <class Condition>
  bool run_until(Condition done) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!done()) {
      if (loop.run_one_until(until) == 0) return false;
    }
    return true;
  }
  bool run_until_all_ended() {
    return run_until([this] { return host.living() == 0; });
  }
};

TEST_CASE("ProcessHost: what a failed worker has left ends with it if that was asked for",
          "[process_host]") {
  Stage stage;
  stage.spawn(0, {"sleep"});  // Lives on.
  const std::string status = GENERATE("1", "0");
  const std::string script = "sleep 1000 & echo ready; exit " + status;
  for (const int local_rank : {1, 2}) {
    stage.host
        .spawn({local_rank,
                {"/bin/sh", "-c", script},
                {stage.mark.variable()},
                stage.words_end.get(),
                -1})
        .value();
    if (local_rank == 1) stage.host.end_family_with(1);
  }
  stage.wait_ready(3);
  REQUIRE(stage.run_until([&] { return stage.calls == 2; }));
  const auto left = [&] { return stage.mark.carriers().size(); };
  const std::size_t expected = status == "0" ? 3 : 2;  // Worker 0 and what 2, or both, have left.
  CHECK(stage.run_until([&] {
    stage.loop.poll();
    return left() == expected;
  }));
  stage.host.signal_workers(SIGKILL);
  REQUIRE(stage.run_until_all_ended());
  stage.host.kill_strays();
  CHECK(stage.mark.all_gone());
}

TEST_CASE("ProcessHost: what all workers have left is gone before the next one is started",
          "[process_host]") {
  Stage stage;
  stage.spawn(0, {"leave_family", "1"});
  stage.wait_ready();
  REQUIRE(stage.run_until_all_ended());
  CHECK(stage.mark.carriers().size() == 12);
  stage.spawn(0, {"sleep"});
  stage.wait_ready();
  CHECK(stage.run_until([&] {
    stage.loop.poll();
    return stage.mark.carriers().size() == 1;
  }));
}

TEST_CASE("ProcessHost: workers are in the roster until nothing of them is left",
          "[process_host]") {
  Stage stage;
  const auto roster = WorkerRoster::make(2).value();
  stage.host.use_roster(roster);
  const int pid = stage.spawn(0, {"sleep"});
  stage.wait_ready();
  REQUIRE(roster->heads().size() == 1);
  CHECK(roster->heads()[0].pid == pid);
  const TickSpan start = roster->heads()[0].started;
  const std::uint64_t started = read_proc_stat(pid).started;
  CHECK((start.from <= started && started <= start.until));
  CHECK(start.from > 0);
  CHECK_FALSE(roster->heads()[0].reaped);
  CHECK(stage.host.spawn({1, {"/no/such"}, {}}).has_error());
  CHECK(roster->heads().size() == 1);
  stage.host.signal_workers(SIGKILL);
  REQUIRE(stage.run_until([&] { return stage.calls == 1; }));
  REQUIRE(roster->heads().size() == 1);  // It may have left something behind.
  CHECK(roster->heads()[0].reaped);
  stage.host.kill_strays();
  CHECK(roster->heads().empty());
}

TEST_CASE("ProcessHost: each worker's end is told once, with code or signal", "[process_host]") {
  Stage stage;
  const int first = stage.spawn(0, {"exit", "0"});
  stage.spawn(1, {"exit", "7"});
  stage.spawn(2, {"signal", "9"});
  stage.spawn(3, {"signal", "15"});
  CHECK(stage.host.living() == 4);
  REQUIRE(stage.run_until_all_ended());
  CHECK(stage.calls == 4);
  CHECK(
      (stage.exits[0].exit_code == 0 && stage.exits[0].signal == 0 && stage.exits[0].pid == first));
  CHECK((stage.exits[1].exit_code == 7 && stage.exits[1].signal == 0));
  CHECK((stage.exits[2].signal == SIGKILL && stage.exits[3].signal == SIGTERM));
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: workers are born in a cgroup of ours, and all of it goes with us",
          "[process_host]") {
  const auto job = make_cgroup(own_cgroup_folder(), "ddprun-test-" + std::to_string(::getpid()));
  if (!job) {
    WARN("not tested: " << to_string(job.error()));
    return;
  }
  {
    Stage stage;
    stage.host.use_cgroup(*job).value();
    stage.spawn(0, {"family"});
    stage.wait_ready();
    const std::string folder = *job + "/" + agent_cgroup_name(::getpid()) + "/0";
    // The worker and its family, once the parents of its daemons have ended.
    CHECK(test::run_until(stage.loop, [&] {
      const std::string members = read_proc_file(folder + "/cgroup.procs");
      return std::count(members.begin(), members.end(), '\n') == 13;
    }));
    REQUIRE(kill_cgroup(folder));  // As an operator may.
    REQUIRE(stage.run_until_all_ended());
    CHECK(stage.exits[0].signal == SIGKILL);
    stage.host.kill_strays();
    CHECK(stage.mark.carriers().empty());
    // A round later, after one with leftovers that had to be killed.
    stage.spawn(1, {"leave_family", "0"});
    stage.wait_ready();
    REQUIRE(stage.run_until_all_ended());
    stage.host.kill_strays();
    stage.spawn(2, {"exit", "7"});
    REQUIRE(stage.run_until_all_ended());
    CHECK(stage.exits[2].exit_code == 7);
  }
  remove_cgroup(*job);
  CHECK(::access(job->c_str(), F_OK) != 0);
}

TEST_CASE("ProcessHost: who is abandoned is named, and not told of any more", "[process_host]") {
  Stage stage;
  const int pid = stage.spawn(3, {"sleep"});
  stage.wait_ready();
  const auto left = stage.host.abandon();
  REQUIRE(left.size() == 1);
  CHECK(left[0].starts_with("local rank 3, pid " + std::to_string(pid) + " (agent_test_work"));
  CHECK(stage.host.living() == 0);
  stage.host.kill_strays();
  CHECK(stage.calls == 0);
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: a program that cannot be started is no worker", "[process_host]") {
  Stage stage;
  const auto result = stage.host.spawn({.local_rank = 2, .argv = {"/no/such"}, .environment = {}});
  REQUIRE(result.has_error());
  CHECK(to_string(result.error()) ==
        "starting local rank 2: execve /no/such: No such file or directory");
  CHECK(stage.host.living() == 0);
}

TEST_CASE("ProcessHost: 256 workers at once, many times, leak nothing", "[process_host]") {
  Stage stage;
  const int before = test::open_descriptors();
  for (int round = 0; round < 4; ++round) {
    for (int rank = 0; rank < 256; ++rank) stage.spawn(rank, {"exit", "0"});
    REQUIRE(stage.run_until_all_ended());
  }
  CHECK(stage.calls == 1024);
  CHECK(test::open_descriptors() == before);
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: many started soon are each their own", "[process_host]") {
  Stage stage;
  const int before = test::open_descriptors();
  for (int rank = 0; rank < 64; ++rank) {
    CHECK(stage.soon(rank, {kWorker, "exit", std::to_string(rank)}));
  }
  const auto pids = stage.host.finish_spawns();
  REQUIRE(pids.size() == 64);
  REQUIRE(stage.run_until_all_ended());
  for (int rank = 0; rank < 64; ++rank) {
    CHECK(stage.exits[rank].exit_code == rank);
    CHECK(stage.exits[rank].pid == pids[static_cast<std::size_t>(rank)].value());
  }
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("ProcessHost: after the first that cannot be started, none is", "[process_host]") {
  Stage stage;
  const int before = test::open_descriptors();
  for (int round = 0; round < 20; ++round) {
    CHECK(stage.soon(0, {kWorker, "exit", "7"}));
    CHECK(stage.soon(1, {"/no/such"}));
    bool refused = false;  // Some may have been begun before it was known.
    for (int rank = 2; rank < 12; ++rank) refused = !stage.soon(rank, {kWorker, "sleep"});
    CHECK(refused);
    const auto pids = stage.host.finish_spawns();
    REQUIRE(pids.size() == 2);
    CHECK(pids[0].has_value());
    CHECK(to_string(pids[1].error()) ==
          "starting local rank 1: execve /no/such: No such file or directory");
    CHECK(stage.host.living() == 1);
    REQUIRE(stage.run_until_all_ended());
    CHECK(stage.exits.size() == 1);
    CHECK(stage.exits[0].exit_code == 7);
  }
  CHECK(children_of_self().empty());
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("ProcessHost: a signal reaches the whole group of each living worker", "[process_host]") {
  Stage stage;
  stage.spawn(0, {"sleep"});
  stage.spawn(1, {"stubborn"});
  stage.wait_ready(2);
  stage.host.signal_workers(SIGTERM);
  REQUIRE(stage.run_until([&] { return stage.host.living() == 1; }));
  CHECK(stage.exits[0].signal == SIGTERM);
  stage.host.signal_workers(SIGKILL);
  REQUIRE(stage.run_until_all_ended());
  CHECK(stage.exits[1].signal == SIGKILL);
}

TEST_CASE("ProcessHost: what a worker left behind is killed, what lives is spared",
          "[process_host]") {
  Stage stage;
  stage.spawn(0, {"leave_family", "3"});
  stage.spawn(1, {"family"});
  stage.wait_ready(2);
  REQUIRE(stage.run_until([&] { return stage.host.living() == 1; }));
  CHECK(stage.exits[0].exit_code == 3);
  stage.host.kill_strays();
  // The living worker, its three sessions of two, but none of its daemons, which had come to us.
  CHECK(stage.mark.carriers().size() == 7);
  CHECK(stage.host.living() == 1);
  stage.host.signal_workers(SIGKILL);
  REQUIRE(stage.run_until_all_ended());
  stage.host.kill_strays();
  CHECK(stage.mark.carriers().empty());
  CHECK(test::zombies() == 0);
}

TEST_CASE(
    "ProcessHost: what a dead worker has detached is gone before another takes its place, what "
    "others have stays",
    "[process_host]") {
  Stage stage;
  const int first = stage.spawn(0, {"family"});
  stage.spawn(1, {"family"});
  stage.wait_ready(2);
  CHECK(stage.mark.carriers().size() == 2 * 13);
  ::kill(first, SIGKILL);
  REQUIRE(stage.run_until([&] { return stage.host.living() == 1; }));
  stage.spawn(0, {"sleep"});
  stage.wait_ready();
  CHECK(stage.mark.carriers().size() == 13 + 1);
  CHECK(stage.host.living() == 2);
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: what a worker has detached ends with it if that was asked for",
          "[process_host]") {
  Stage stage;
  const int first = stage.spawn(0, {"family"});
  stage.wait_ready();
  const std::vector<int> all = stage.mark.carriers();
  stage.host.end_family_with(0);
  stage.spawn(1, {"family"});
  stage.wait_ready();
  test::Ends ends(all);
  ::kill(first, SIGKILL);
  REQUIRE(stage.run_until([&] { return stage.host.living() == 1; }));
  CHECK(ends.wait(20s));
  CHECK(stage.mark.carriers().size() == 13);
}

TEST_CASE("ProcessHost: kill_everything leaves nothing at once", "[process_host]") {
  Stage stage;
  for (int rank = 0; rank < 4; ++rank) stage.spawn(rank, {"family"});
  stage.wait_ready(4);
  CHECK(stage.mark.carriers().size() == 4 * 13);
  stage.host.kill_everything();
  CHECK(stage.mark.carriers().empty());
  CHECK(stage.host.living() == 0);
  CHECK(stage.calls == 0);
  CHECK(test::zombies() == 0);
}

// From now on this process dies where it calls kill(..., SIGKILL).
void die_at_kill() {
  constexpr unsigned kNumber = offsetof(seccomp_data, nr);
  constexpr unsigned kSignal = offsetof(seccomp_data, args[1]);  // On these CPUs its lower half.
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSignal),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SIGKILL, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST_CASE("ProcessHost: one that dies as it kills a worker has killed what that had detached",
          "[process_host]") {
  test::Mark mark;
  const pid_t pid = ::fork();
  if (pid == 0) {
    Stage stage;
    const std::string script = "setsid sleep 1000 & echo ready; exec sleep 1000";
    (void)stage.host.spawn(
        {0, {"/bin/sh", "-c", script}, {mark.variable()}, stage.words_end.get(), -1});
    stage.wait_ready();
    die_at_kill();
    stage.host.kill_everything();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS));
  CHECK(mark.all_gone());
}

TEST_CASE("ProcessHost: its end is the end of its workers", "[process_host]") {
  test::Mark mark;
  {
    Stage stage;
    stage.host.spawn({0, {kWorker, "stubborn"}, {mark.variable()}, stage.words_end.get(), -1})
        .value();
    stage.wait_ready();
    CHECK(mark.carriers().size() == 1);
  }
  CHECK(mark.carriers().empty());
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: orphans that end by themselves are reaped while the run goes on",
          "[process_host]") {
  Stage stage;
  stage.spawn(0, {"brief_daemons", "50"});
  stage.wait_ready();
  REQUIRE(stage.run_until([] { return children_of_self().size() == 1; }));
  CHECK(test::zombies() == 0);
  CHECK(stage.host.living() == 1);
}

TEST_CASE("ProcessHost: ends are reported in the order of the exits", "[process_host]") {
  Stage stage;
  std::map<int, int> pids;
  for (int rank = 0; rank < 4; ++rank) pids[rank] = stage.spawn(rank, {"sleep"});
  stage.wait_ready(4);
  const auto end = [&](int rank) {
    ::kill(pids[rank], SIGKILL);
    siginfo_t info{};  // Dead, and not reaped by us.
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pids[rank]), &info, WEXITED | WNOWAIT) == 0);
  };
  std::vector<int> reported;
  stage.host.on_exit = [&](const WorkerDeath& death, auto) {
    reported.push_back(death.local_rank);
    if (death.local_rank != 3) return;
    for (const int rank : {1, 0, 2}) end(rank);  // While the loop does not look.
  };
  end(3);
  REQUIRE(stage.run_until([&] { return reported.size() == 4; }));
  CHECK(reported == std::vector{3, 1, 0, 2});
  CHECK(test::zombies() == 0);
}

TEST_CASE("ProcessHost: a handler may start the next worker, or end the host", "[process_host]") {
  boost::asio::io_context loop(1);
  auto host = std::make_unique<PosixProcessHost>(loop);
  int ended = 0;
  host->on_exit = [&](const WorkerDeath& exit, auto) {
    if (++ended < 5) {
      host->spawn({exit.local_rank + 1, {kWorker, "exit", "0"}, {}}).value();
    } else {
      host.reset();
    }
  };
  host->spawn({0, {kWorker, "exit", "0"}, {}}).value();
  loop.run_for(20s);
  CHECK(ended == 5);
  CHECK(!host);
}

}  // namespace
}  // namespace ddprun::agent
