#include "agent/supervisor.h"

#include <catch2/catch.hpp>
#include <csignal>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using rendezvous::Assign;
using rendezvous::EndRun;
using rendezvous::Refuse;
using rendezvous::StopRound;
using rendezvous::Verdict;
using rendezvous::WorkerDeath;
using Lines = std::vector<std::string>;

// One node with two workers. `does` takes one event and shows what the agent is to do.
struct NodeFixture {
  TimePoint now{};
  Supervisor supervisor{{.host = "h", .local_world_size = 2, .grace = 30s}, now};

  Lines does(const Event& event, Duration elapsed = 0s) {
    now += elapsed;
    Lines lines;
    for (const Action& action : supervisor.step(event, now)) lines.push_back(to_string(action));
    supervisor.check_invariants();
    return lines;
  }
  static Event assign(int round) {
    rendezvous::Seat seat;
    seat.round = round;
    return Heard{Assign{seat}};
  }
  static Event ended(int local_rank, int code, int signal = 0) {
    WorkerDeath death;
    death.local_rank = death.rank = local_rank;
    death.pid = 10 + local_rank;
    death.exit_code = code;
    death.signal = signal;
    return WorkerEnded{death};
  }
  static Event verdict(int code) {
    Verdict verdict;
    verdict.exit_code = code;
    return Heard{EndRun{verdict}};
  }
};

TEST_CASE_METHOD(NodeFixture, "Supervisor: joins, runs, finishes and ends with the verdict",
                 "[supervisor]") {
  CHECK(does(LinkUp{}) == Lines{"send join"});
  CHECK(does(assign(0)) == Lines{"start round=0 restarts=0"});
  CHECK(does(assign(0)).empty());  // Heard twice.
  CHECK(does(ended(0, 0)).empty());
  CHECK(does(ended(1, 0)) == Lines{"send finished"});
  CHECK(does(verdict(0)) == Lines{"exit 0"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a failure is reported and the siblings stopped at once",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(ended(1, 7)) == Lines{"say rank 1 (pid 11) exited with 7", "send failed",
                                   "signal SIGTERM, rank 1 is lost"});
  CHECK(does(ended(0, 0, SIGTERM)) == Lines{"clean up"});
  CHECK(does(Heard{StopRound{0, "rank 1 exited with 7", false}}) ==
        Lines{"send stopped", "send join"});
  CHECK(does(assign(0)).empty());  // There is no way back into a round.
  CHECK(does(assign(1)) == Lines{"start round=1 restarts=0"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: workers that survive SIGKILL are not waited for for ever",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 7));
  CHECK(does(Tick{}, 30s) ==
        Lines{"say 1 worker did not end in time: killing what is left", "signal SIGKILL"});
  REQUIRE(supervisor.deadline() == now + 10s);
  CHECK(does(Tick{}, 9s).empty());
  CHECK(does(Tick{}, 1s) ==
        Lines{"say SIGKILL does not end 1 worker of h; leaving what is stuck behind", "abandon",
              "send leave", "exit 7"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: who leaves workers behind still waits for the verdict",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 7));
  does(Heard{StopRound{0, "rank 1 exited with 7", true}});
  does(Tick{}, 30s);
  CHECK(does(Tick{}, 10s) ==
        Lines{"say SIGKILL does not end 1 worker of h; leaving what is stuck behind", "abandon",
              "send stopped"});
  SECTION("and ends with it") { CHECK(does(verdict(7)) == Lines{"exit 7"}); }
  SECTION("but not for ever") {
    REQUIRE(supervisor.deadline() == now + 2s);
    CHECK(does(Tick{}, 2s) == Lines{"exit 7"});
  }
  SECTION("and does not come back if the run goes on after all") {
    CHECK(does(Heard{StopRound{0, "a node joined", false}}) ==
          Lines{"send stopped", "send leave", "exit 7"});
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: without another cause such workers are the cause",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(Heard{StopRound{0, "a node was lost", false}});
  does(Tick{}, 30s);
  CHECK(does(Tick{}, 10s).back() == "exit 137");
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a worker that ends after all is no survivor",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 7));
  does(Tick{}, 30s);
  CHECK(does(ended(0, 0, SIGKILL), 9s) == Lines{"clean up"});
  CHECK(supervisor.deadline() == std::nullopt);
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: workers deaf to SIGTERM are killed when the grace is over",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(Heard{StopRound{0, "a node was lost", false, 6}}) ==
        Lines{"say a node was lost; stopping, then starting again",
              "signal SIGTERM, rank 6 is lost"});
  REQUIRE(supervisor.deadline() == now + 30s);
  CHECK(does(Tick{}, 29s).empty());
  CHECK(does(Tick{}, 1s) ==
        Lines{"say 2 workers did not end in time: killing what is left", "signal SIGKILL"});
  does(ended(0, 0, SIGKILL));
  CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up", "send stopped", "send join"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: workers go on without a daemon, which hears of them later",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(LinkDown{"reset"}) ==
        Lines{"say lost the rendezvous daemon (reset); workers go on, connecting again"});
  CHECK_FALSE(supervisor.deadline());
  CHECK(does(LinkDown{"refused"}).empty());
  CHECK(does(ended(0, 0)).empty());
  CHECK(does(LinkUp{}) == Lines{"send heartbeat"});
  CHECK(does(LinkDown{"reset"}).size() == 1);
  CHECK(does(ended(1, 0)).empty());
  CHECK(does(LinkUp{}) == Lines{"send heartbeat", "send finished"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a failure that nobody heard is told on the next link",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(LinkDown{"reset"});
  does(ended(0, 7));
  does(ended(1, 0, SIGTERM));
  CHECK(does(LinkUp{}) == Lines{"send heartbeat", "send failed"});
  CHECK(does(Heard{StopRound{0, "why", true}}) == Lines{"send stopped"});
  CHECK(does(LinkDown{"reset"}).size() == 1);
  CHECK(does(LinkUp{}) == Lines{"send heartbeat", "send failed", "send stopped"});
  CHECK(does(verdict(7)) == Lines{"exit 7"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: without a daemon it ends in bounded time",
                 "[supervisor]") {
  SECTION("that never came") {
    REQUIRE(supervisor.deadline() == now + 10min);
    CHECK(does(Tick{}, 10min) == Lines{"say no rendezvous daemon; giving up", "exit 3"});
  }
  SECTION("that vanished before the workers failed") {
    does(LinkUp{});
    does(assign(0));
    does(LinkDown{"reset"});
    does(ended(0, 9));
    does(ended(1, 0, SIGTERM));
    CHECK(does(Tick{}, 30s) == Lines{"say no rendezvous daemon (reset); giving up", "exit 9"});
  }
  SECTION("that vanished before the workers finished") {
    does(LinkUp{});
    does(assign(0));
    does(LinkDown{"reset"});
    does(ended(0, 0));
    does(ended(1, 0));
    CHECK(does(Tick{}, 30s) == Lines{"say every worker here ended well, but there is no rendezvous "
                                     "daemon to tell so (reset)",
                                     "exit 0"});
  }
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: a signal stops workers with the same signal, one much later kills",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(Signalled{SIGINT}) ==
        Lines{"say interrupted by SIGINT; stopping the workers", "send leave", "signal SIGINT"});
  does(ended(0, 0, SIGINT));
  CHECK(does(Signalled{SIGINT}, 15s) ==
        Lines{"say a second signal, 15 s after the first: killing the workers", "signal SIGKILL"});
  CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up", "exit 130"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a signal that comes twice leaves workers their grace",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(Signalled{SIGTERM}).size() == 3);
  const auto ends = supervisor.grace_ends();
  REQUIRE(ends);
  CHECK(does(Signalled{SIGTERM}).empty());
  CHECK(does(Signalled{SIGINT}, 14s).empty());
  CHECK(supervisor.grace_ends() == ends);
  CHECK(supervisor.signalled() == SIGTERM);
  does(ended(0, 0, SIGTERM));
  CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up", "exit 143"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: a worker that cannot start fails the round, those before it stop",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  WorkerDeath death;
  death.local_rank = 1;
  death.detail = "exec ./x: permission denied";
  CHECK(does(StartFailed{death}) ==
        Lines{"say exec ./x: permission denied", "send failed", "signal SIGTERM, rank 0 is lost"});
  CHECK(supervisor.living() == 1);
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: refused means no", "[supervisor]") {
  does(LinkUp{});
  CHECK(does(Heard{Refuse{"--nnodes differs"}}) ==
        Lines{"say the rendezvous daemon refused h: --nnodes differs", "exit 3"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: when the launcher dies, so does everything",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(LauncherDied{}) == Lines{"signal SIGKILL", "clean up", "exit 137"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: told to end while the daemon is away, it waits a little to say so",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(LinkDown{"reset"});
  CHECK(does(Signalled{SIGTERM}) ==
        Lines{"say interrupted by SIGTERM; stopping the workers", "signal SIGTERM"});
  does(ended(0, 0, SIGTERM));
  SECTION("and the daemon comes back") {
    CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up"});
    CHECK(does(LinkUp{}, 1s) == Lines{"send leave", "exit 143"});
  }
  SECTION("and the daemon comes back before the workers are gone") {
    CHECK(does(LinkUp{}, 1s) == Lines{"send leave"});
    CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up", "exit 143"});
  }
  SECTION("but no longer than two seconds") {
    CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up"});
    REQUIRE(supervisor.deadline() == now + 2s);
    CHECK(does(Tick{}, 2s) == Lines{"exit 143"});
  }
  SECTION("and a second signal so soon changes nothing") {
    CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up"});
    CHECK(does(Signalled{SIGINT}).empty());
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a node that never saw the daemon ends at once",
                 "[supervisor]") {
  does(LinkDown{"refused"});
  CHECK(does(Signalled{SIGINT}) == Lines{"say interrupted by SIGINT", "exit 130"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a run that was closing may go on after all",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(0, 97));
  does(ended(1, 0, SIGTERM));
  CHECK(does(Heard{StopRound{0, "rank 0 exited with 97", true}}) == Lines{"send stopped"});
  CHECK(does(Heard{StopRound{0, "h2 closed its connection", false}}) ==
        Lines{"send stopped", "send join"});
  CHECK(does(assign(1)) == Lines{"start round=1 restarts=0"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a drained node stops its workers and ends well",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(Heard{StopRound{0, "h is drained", false}});
  does(ended(0, 0, SIGTERM));
  CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up", "send stopped", "send join"});
  CHECK(does(Heard{rendezvous::Dismiss{"new fans"}}) ==
        Lines{"say the run goes on without h: new fans", "exit 0"});
}

}  // namespace
}  // namespace ddprun::agent
