#include "launcher/guard/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "launcher/guard/guarded_process.h"
#include "tests/process/agent/processes.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::Ends;
using test::Mark;
using test::TestProcess;

// The promise is that nothing is left after 100 ms, which bench/orphans.py measures; a loaded
// machine gets more.
constexpr auto kGone = 1000ms;
constexpr int kRounds = 10;
constexpr int kFamily = 13;  // A worker of the kind "family", and what it leaves everywhere.

std::vector<std::string> launch(int nodes, int workers, const std::string& service,
                                const std::vector<std::string>& what) {
  std::vector<std::string> argv = {AGENT_TEST_LAUNCHER, std::to_string(nodes),
                                   std::to_string(workers), service, AGENT_TEST_WORKER};
  argv.insert(argv.end(), what.begin(), what.end());
  return argv;
}

// Children of `guardian` that are its forks: its agents, first started first.
std::vector<int> agents_of(const Mark& mark, int guardian) {
  std::vector<int> agents;
  for (const int pid : mark.carriers_running("family")) {
    if (pid == guardian) continue;
    if (test::parent_of(pid) == guardian && test::program_of(pid) == "agent_test_launcher")
      agents.push_back(pid);
  }
  return agents;
}

TEST_CASE("Guardian: the exit code is the first failing agent's own", "[guardian]") {
  const Mark mark;
  const auto code = [&](int nodes, const std::vector<std::string>& what) {
    TestProcess launcher(launch(nodes, 2, "-", what), mark.variable());
    return launcher.wait();
  };
  CHECK(code(1, {"exit", "0"}) == 0);
  CHECK(code(3, {"exit", "0"}) == 0);
  CHECK(code(2, {"exit", "7"}) == 7);
  CHECK(code(1, {"signal", "15"}) == 143);
  CHECK(mark.all_gone());
}

TEST_CASE("Guardian: kill -9 of the guardian leaves nothing", "[guardian][kill]") {
  for (int round = 0; round < kRounds; ++round) {
    const Mark mark;
    TestProcess launcher(launch(2, 2, "stubborn", {"family"}), mark.variable());
    REQUIRE(launcher.wait_for_output("ready\n", 5));
    Ends all(mark.carriers());
    REQUIRE(mark.carriers().size() ==
            1 + 2 + 1 + 4 * kFamily);  // Guardian, agents, service, families.
    ::kill(launcher.pid(), SIGKILL);
    REQUIRE(all.wait(kGone));
    CHECK(mark.all_gone());
  }
}

TEST_CASE("Guardian: kill -9 of the only agent leaves nothing, and says which it was",
          "[guardian][kill]") {
  for (int round = 0; round < kRounds; ++round) {
    const Mark mark;
    TestProcess launcher(launch(1, 4, "-", {"family"}), mark.variable());
    REQUIRE(launcher.wait_for_output("ready\n", 4));
    const std::vector<int> agents = agents_of(mark, launcher.pid());
    REQUIRE(agents.size() == 1);
    Ends all(mark.carriers());
    ::kill(agents[0], SIGKILL);
    REQUIRE(all.wait(kGone));
    CHECK(mark.all_gone());
    CHECK(launcher.wait() == 137);
    launcher.read_rest();
    CHECK(launcher.output().ends_with(
        "launcher: error: node 0's agent (pid " + std::to_string(agents[0]) +
        ") was killed by SIGKILL; its workers were killed with it\n"));
  }
}

TEST_CASE("Guardian: kill -9 of one agent leaves the other node alone", "[guardian][kill]") {
  const Mark mark;
  TestProcess launcher(launch(2, 2, "-", {"family"}), mark.variable());
  REQUIRE(launcher.wait_for_output("ready\n", 4));
  const std::vector<int> agents = agents_of(mark, launcher.pid());
  REQUIRE(agents.size() == 2);
  ::kill(agents[0], SIGKILL);
  REQUIRE(launcher.wait_for_output("was killed by SIGKILL", 1));
  CHECK(mark.carriers().size() == 1 + 1 + 2 * kFamily);
  ::kill(launcher.pid(), SIGTERM);
  CHECK(launcher.wait() == 137);
  CHECK(mark.all_gone());
}

TEST_CASE("Guardian: kill -9 of a worker ends its node and leaves nothing", "[guardian][kill]") {
  for (int round = 0; round < kRounds; ++round) {
    const Mark mark;
    TestProcess launcher(launch(1, 3, "-", {"family", "tell"}), mark.variable());
    REQUIRE(launcher.wait_for_output("ready\n", 3));
    const int worker = std::stoi(launcher.output().substr(launcher.output().find("worker ") + 7));
    Ends all(mark.carriers());
    ::kill(worker, SIGKILL);
    REQUIRE(all.wait(kGone));
    CHECK(mark.all_gone());
    CHECK(launcher.wait() == 137);
  }
}

TEST_CASE("Guardian: signals are passed on, to agents in groups of their own", "[guardian]") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const Mark mark;
    TestProcess launcher(launch(2, 2, "-", {"family"}), mark.variable());
    REQUIRE(launcher.wait_for_output("ready\n", 4));
    for (const int agent : agents_of(mark, launcher.pid())) CHECK(::getpgid(agent) == agent);
    ::kill(launcher.pid(), signal);
    CHECK(launcher.wait() == 137);  // The worker's end, here.
    CHECK(mark.all_gone());
  }
}

TEST_CASE("Guardian: under nohup a hang-up stays ignored", "[guardian]") {
  const Mark mark;
  ::signal(SIGHUP, SIG_IGN);
  TestProcess launcher(launch(1, 1, "-", {"family"}), mark.variable());
  ::signal(SIGHUP, SIG_DFL);
  REQUIRE(launcher.wait_for_output("ready\n", 1));
  ::kill(launcher.pid(), SIGHUP);
  ::kill(launcher.pid(), SIGUSR1);  // Comes after it, and is deadly to these agents.
  CHECK(launcher.wait() == 128 + SIGUSR1);
  launcher.read_rest();
  CHECK(launcher.output().find("was killed by SIGUSR1") != std::string::npos);
}

TEST_CASE("Guardian: signals that are sent twice kill nobody, but impatience does", "[guardian]") {
  const Mark mark;
  TestProcess launcher(launch(2, 2, "deaf", {"family"}), mark.variable());
  REQUIRE(launcher.wait_for_output("ready\n", 4));
  for (const int signal : {SIGTERM, SIGINT, SIGTERM, SIGINT}) ::kill(launcher.pid(), signal);
  CHECK(launcher.wait(300ms) == -1);
  ::sigqueue(launcher.pid(), SIGINT, {.sival_int = kNowValue});
  CHECK(launcher.wait() == 130);
  CHECK(mark.all_gone());
  launcher.read_rest();
  CHECK(launcher.output().ends_with("launcher: warning: interrupted again: killing everything\n"));
}

TEST_CASE("Guardian: it sees its children end though its parent ignored SIGCHLD", "[guardian]") {
  for (const char* code : {"0", "7"}) {
    const Mark mark;
    ::signal(SIGCHLD, SIG_IGN);
    TestProcess launcher(launch(2, 1, "sleep", {"exit", code}), mark.variable());
    ::signal(SIGCHLD, SIG_DFL);
    CHECK(launcher.wait() == std::stoi(code));
    CHECK(mark.all_gone());
  }
}

TEST_CASE("Guardian: a background job of a script, which ignores SIGINT, is ended by it",
          "[guardian]") {
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) {
    const Mark mark;
    ::signal(signal, SIG_IGN);
    TestProcess launcher(launch(1, 1, "-", {"family"}), mark.variable());
    ::signal(signal, SIG_DFL);
    REQUIRE(launcher.wait_for_output("ready\n", 1));
    ::kill(launcher.pid(), signal);
    CHECK(launcher.wait() != -1);
    CHECK(mark.all_gone());
  }
}

TEST_CASE("Guardian: a service that dies is started again, but not at once for ever",
          "[guardian]") {
  const Mark mark;
  TestProcess launcher(launch(1, 1, "sleep", {"family"}), mark.variable());
  for (int life = 0; life < 3; ++life) {
    REQUIRE(launcher.wait_for_output("ready\n", 2 + life));
    const std::vector<int> services = mark.carriers_running("sleep");
    int service = 0;
    for (const int pid : services)
      service = test::program_of(pid) == "agent_test_worker" ? pid : service;
    REQUIRE(service != 0);
    ::kill(service, SIGKILL);
    REQUIRE(launcher.wait_for_output(
        life < 2 ? "starting it again" : "it dies too often, and is started",
        life < 2 ? life + 1 : 1));
  }
  CHECK(launcher.output().find("the daemon (pid ") != std::string::npos);
  CHECK(launcher.output().find(
            "was killed by SIGKILL; starting it again (1 of at most 2 times a minute)") !=
        std::string::npos);
  ::kill(launcher.pid(), SIGTERM);
  CHECK(launcher.wait() == 137);
  CHECK(mark.all_gone());
}

TEST_CASE("Guardian: services end with the last agent, the deaf ones too", "[guardian]") {
  for (const char* service : {"sleep", "stubborn", "family", "no_such_thing"}) {
    const Mark mark;
    TestProcess launcher(launch(2, 1, service, {"exit", "3"}), mark.variable());
    CHECK(launcher.wait() == 3);
    CHECK(mark.all_gone());
  }
}

TEST_CASE("Guardian: within a process it leaves no trace", "[guardian]") {
  const int before = test::open_descriptors();
  sigset_t mask_before, mask_after;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask_before);
  GuardianPlan plan;
  for (const int code : {0, 5, 5}) {
    plan.children.push_back({.name = "node", .body = [code] { return code; }});
  }
  plan.children.push_back(
      {.kind = GuardedChild::Kind::kService, .name = "nothing", .argv = {"/no/such"}});
  CHECK(guard(plan) == 5);
  ::sigprocmask(SIG_SETMASK, nullptr, &mask_after);
  CHECK(test::open_descriptors() == before);
  CHECK(test::zombies() == 0);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    CHECK(::sigismember(&mask_before, signal) == ::sigismember(&mask_after, signal));
  }
}

// Runs one agent; it is expected to be killed.
int guard_one(const GuardedChild& agent, int& reported) {
  GuardianPlan plan;
  plan.children.push_back(agent);
  plan.on_agent_killed = [&](const AgentKilled&) { ++reported; };
  return guard(plan);
}

TEST_CASE("Guardian: an agent that is killed once its exit code is decided has ended with that",
          "[guardian][kill]") {
  for (const int code : {0, 7, 255}) {
    const auto decided = DecidedCode::make();
    REQUIRE(decided);
    CHECK(decided->read() == std::nullopt);
    int reported = 0;
    const auto body = [&] {
      decided->decide(code);
      ::raise(SIGKILL);
      return 1;
    };
    CHECK(guard_one({.name = "node", .body = body, .decided = &*decided}, reported) == code);
    CHECK(reported == 0);
  }
  const auto undecided = DecidedCode::make();
  REQUIRE(undecided);
  int reported = 0;
  const auto body = [] { return ::raise(SIGKILL); };
  CHECK(guard_one({.name = "node", .body = body, .decided = &*undecided}, reported) == 137);
  CHECK(reported == 1);
}

TEST_CASE("Guardian: impatience does not change an exit code that is decided", "[guardian]") {
  for (const bool is_decided : {true, false}) {
    const auto decided = DecidedCode::make();
    REQUIRE(decided);
    int reported = 0;
    const auto body = [&] {
      if (is_decided) decided->decide(7);
      ::sigqueue(::getppid(), SIGINT, {.sival_int = kNowValue});
      for (;;) ::pause();
      return 1;
    };
    const GuardedChild agent{
        .name = "node", .body = body, .takes_signals = true, .decided = &*decided};
    CHECK(guard_one(agent, reported) == (is_decided ? 7 : 130));
    CHECK(reported == (is_decided ? 0 : 1));
  }
}

TEST_CASE(
    "Guardian: a service inherits the descriptors it was promised, under their numbers, and no "
    "other",
    "[guardian]") {
  int words[2], other[2];
  REQUIRE((::pipe2(words, O_CLOEXEC) == 0 && ::pipe(other) == 0));
  GuardianPlan plan;
  const std::string fd = std::to_string(words[1]);
  plan.children.push_back({.kind = GuardedChild::Kind::kService,
                           .name = "the daemon",
                           .argv = {AGENT_TEST_WORKER, "describe", fd},
                           .inherited_fds = {words[1]}});
  plan.children.push_back(
      {.name = "node", .body = [&] {
         char block[1024] = {};
         const ssize_t got = ::read(words[0], block, sizeof block);
         const std::string facts(block, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
         const bool right = facts.starts_with("fds: 0 1 2 " + fd + "\n") &&
                            facts.find("death signal: 9\n") != std::string::npos &&
                            facts.find("blocked: 0\n") != std::string::npos;
         return right ? 42 : 43;
       }});
  CHECK(guard(plan) == 42);
  for (const int end : {words[0], words[1], other[0], other[1]}) ::close(end);
}

}  // namespace
}  // namespace ddprun::launcher
