#include "agent/supervisor/supervisor.h"

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
    return Received{Assign{seat}};
  }
  // A worker that ends by SIGTERM or SIGKILL here was stopped by its agent.
  static Event ended(int local_rank, int code, int signal = 0) {
    WorkerDeath death;
    death.local_rank = death.rank = local_rank;
    death.pid = 10 + local_rank;
    death.exit_code = code;
    death.signal = signal;
    death.stopped_by_us = signal != 0;
    return WorkerEnded{death};
  }
  static Event verdict(int code) {
    Verdict verdict;
    verdict.exit_code = code;
    return Received{EndRun{verdict}};
  }
};

TEST_CASE_METHOD(NodeFixture, "Supervisor: joins, runs, finishes and ends with the verdict",
                 "[supervisor]") {
  CHECK(does(LinkUp{}) == Lines{"send join"});
  CHECK(does(assign(0)) == Lines{"start round=0 restarts=0"});
  CHECK(does(assign(0)).empty());  // Received twice.
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
  CHECK(does(Received{StopRound{0, "rank 1 exited with 7", false}}) ==
        Lines{"send stopped", "send join"});
  CHECK(does(assign(0)).empty());  // There is no way back into a round.
  CHECK(does(assign(1)) == Lines{"start round=1 restarts=0"});
}

struct LeaverFixture : NodeFixture {
  static Event lost_peer(int local_rank, int peer) {
    Event event = ended(local_rank, 1);
    WorkerDeath& death = std::get<WorkerEnded>(event).death;
    death.fault = Fault::kPeerLost;
    death.blames = peer;
    return event;
  }
  static Event stop(bool awaits_cause) {
    StopRound stop{0, "rank 0 exited with 1", true};
    stop.awaits_cause = awaits_cause;
    return Received{stop};
  }
  LeaverFixture() {
    does(LinkUp{});
    does(assign(0));
  }
};

TEST_CASE_METHOD(LeaverFixture,
                 "Supervisor: where a rank has lost a peer, one that leaves may end by itself",
                 "[supervisor]") {
  CHECK(does(lost_peer(0, 1)) == Lines{"say rank 0 (pid 10) exited with 1", "send failed",
                                       "signal SIGTERM, rank 0 is lost, but not those that leave"});
  CHECK(does(stop(/*awaits_cause=*/true), 1s).empty());
  SECTION("it does") {
    CHECK(does(Tick{}, 13s).empty());
    CHECK(does(ended(1, 3)) == Lines{"clean up", "send stopped"});
  }
  SECTION("it has half of the grace, and then the other half to act on a signal") {
    CHECK(supervisor.deadline() == now + 14s);
    CHECK(does(Tick{}, 14s) == Lines{"signal SIGTERM to those that leave"});
    CHECK(does(Tick{}, 14s).empty());
    CHECK(does(Tick{}, 1s) ==
          Lines{"say 1 worker did not end in time: killing the rest", "signal SIGKILL"});
  }
  SECTION("the cause is known by now") {
    CHECK(does(stop(/*awaits_cause=*/false)) == Lines{"signal SIGTERM to those that leave"});
    CHECK(does(stop(/*awaits_cause=*/false)).empty());
  }
  SECTION("somebody interrupts the run") {
    const Lines lines = does(Signalled{SIGINT});
    CHECK(lines.front() == "signal SIGTERM to those that leave");
    CHECK(does(Tick{}, 14s).empty());
  }
}

TEST_CASE_METHOD(LeaverFixture, "Supervisor: a node without a victim waits for those that leave",
                 "[supervisor]") {
  CHECK(does(stop(/*awaits_cause=*/true)).back() == "signal SIGTERM, but not those that leave");
  CHECK(does(ended(0, 0, SIGTERM)).empty());  // That explains nothing.
  SECTION("until one has ended that explains it") {
    CHECK(does(ended(1, 3)) == Lines{"clean up", "send stopped"});
  }
  SECTION("for no more than half of the grace") {
    CHECK(does(Tick{}, 15s) == Lines{"signal SIGTERM to those that leave"});
  }
}

TEST_CASE_METHOD(LeaverFixture, "Supervisor: nobody is waited for where a rank failed by itself",
                 "[supervisor]") {
  SECTION("here") { CHECK(does(ended(0, 3)).back() == "signal SIGTERM, rank 0 is lost"); }
  SECTION("and its victim was quicker") {
    does(lost_peer(0, 1));
    CHECK(does(ended(1, 3)).back() == "clean up");
  }
  SECTION("elsewhere") { CHECK(does(stop(/*awaits_cause=*/false)).back() == "signal SIGTERM"); }
  SECTION("or has ended with 0 before") {
    does(ended(1, 0));
    CHECK(does(lost_peer(0, 1)).back() == "clean up");
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: records of deaths are carried unchanged, in order",
                 "[supervisor]") {
  const auto record = [](const Event& event) { return std::get<WorkerEnded>(event).death; };
  // Rank 1 died before the stop; or it was stopped, and its own end explains nothing.
  const Event second = GENERATE(ended(1, 7), ended(1, 0, SIGTERM));
  const Event first = ended(0, 97);
  does(LinkUp{});
  does(assign(0));
  does(first);
  does(second);
  now += 1ms;
  for (const Action& action : supervisor.step(Received{StopRound{0, "", true}}, now)) {
    const auto& stopped =
        std::get<rendezvous::Stopped>(std::get<SendMessage>(action).message).deaths;
    REQUIRE(stopped.size() == 2);
    CHECK(stopped[0] == record(first));
    CHECK(stopped[1] == record(second));
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a failure is reported at once, its words follow",
                 "[supervisor]") {
  const auto awaiting = [](int local_rank, int code) {
    Event event = ended(local_rank, code);
    std::get<WorkerEnded>(event).output_follows = true;
    return event;
  };
  WorkerDeath account = std::get<WorkerEnded>(ended(1, 7)).death;
  account.detail = "loss is NaN";
  does(LinkUp{});
  does(assign(0));
  CHECK(does(awaiting(1, 7)) == Lines{"send failed", "signal SIGTERM, rank 1 is lost"});
  does(Received{StopRound{0, "rank 1 exited with 7", true}});
  CHECK(does(ended(0, 0, SIGTERM)).empty());  // Rank 1's output is still to come.
  const auto actions = supervisor.step(LastOutput{account}, now);
  supervisor.check_invariants();
  REQUIRE(actions.size() == 3);
  CHECK(to_string(actions[0]) == "say rank 1 (pid 11) exited with 7");
  CHECK(to_string(actions[1]) == "clean up");
  const auto& stopped = std::get<rendezvous::Stopped>(std::get<SendMessage>(actions[2]).message);
  CHECK(stopped.deaths.at(0).detail == "loss is NaN");
  CHECK_FALSE(stopped.deaths.at(0).stopped_by_us);
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: that memory ran out is said though the run goes on",
                 "[supervisor]") {
  Event event = ended(1, 0, SIGKILL);
  WorkerDeath& death = std::get<WorkerEnded>(event).death;
  death.stopped_by_us = false;
  death.fault = Fault::kOutOfMemory;
  death.evidence = "the kernel's out-of-memory killer ended it";
  does(LinkUp{});
  does(assign(0));
  CHECK(does(event).front() ==
        "say rank 1 (pid 11) was killed by signal 9 (SIGKILL): the kernel's out-of-memory killer "
        "ended it");
}

TEST_CASE("Supervisor: the only worker's words are waited for", "[supervisor]") {
  Supervisor supervisor({.host = "h"}, TimePoint{});
  (void)supervisor.step(LinkUp{}, TimePoint{});
  (void)supervisor.step(NodeFixture::assign(0), TimePoint{});
  Event event = NodeFixture::ended(0, 7);
  std::get<WorkerEnded>(event).output_follows = true;
  (void)supervisor.step(event, TimePoint{});
  supervisor.check_invariants();
  CHECK_FALSE(supervisor.deadline());
  const auto actions = supervisor.step(LastOutput{std::get<WorkerEnded>(event).death}, TimePoint{});
  REQUIRE(actions.size() == 2);
  CHECK(to_string(actions[1]) == "clean up");
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: who ended well is told of, too", "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 0));
  does(ended(0, 97));
  const auto actions = supervisor.step(Received{StopRound{0, "", true}}, now);
  REQUIRE(actions.size() == 1);
  const auto& stopped = std::get<rendezvous::Stopped>(std::get<SendMessage>(actions[0]).message);
  REQUIRE(stopped.successes.size() == 1);
  CHECK(stopped.successes[0].rank == 1);
  CHECK(stopped.deaths.size() == 1);
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a restart is announced with its count and its cause",
                 "[supervisor]") {
  const Event stop = Received{StopRound{0, "rank 1 on h exited with 7", false, 1, 1, 2}};
  does(LinkUp{});
  does(assign(0));
  SECTION("where the worker failed") {
    does(ended(1, 7));
    CHECK(does(stop) ==
          Lines{"say rank 1 on h exited with 7; starting all again (restart 1 of 2)"});
    CHECK(does(stop).empty());
  }
  SECTION("elsewhere") {
    CHECK(does(stop).front() ==
          "say rank 1 on h exited with 7; stopping, then starting all again (restart 1 of 2)");
  }
}

// Others may go on without it.
struct FencedFixture : NodeFixture {
  FencedFixture() {
    supervisor =
        Supervisor({.host = "h", .local_world_size = 2, .fence = 20s, .fence_always = true}, now);
    does(LinkUp{});
    does(assign(0));
  }
};

TEST_CASE_METHOD(FencedFixture, "Supervisor: a node that is cut off kills its workers in time",
                 "[supervisor]") {
  CHECK(does(LinkDown{"gone"}) ==
        Lines{"say lost the rendezvous daemon (gone); workers continue; they are killed in 20 s "
              "unless it answers; connecting again"});
  REQUIRE(supervisor.deadline() == now + 20s);
  CHECK(does(LinkDown{"refused"}, 19s).empty());
  CHECK(does(Tick{}, 1s) ==
        Lines{"say h is cut off from the rendezvous daemon (refused), and the run may "
              "continue without it: killing its workers, then joining again",
              "signal SIGKILL"});
  CHECK(does(ended(0, 0, SIGKILL)).empty());
  CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up"});
  SECTION("and joins when it finds the daemon") {
    CHECK(does(LinkUp{}) == Lines{"send join"});
    CHECK(does(assign(0)).empty());
    CHECK(does(assign(1)) == Lines{"start round=1 restarts=0"});
  }
  SECTION("or gives up, as if it had never begun") {
    CHECK(does(Tick{}, 10min) == Lines{"say no rendezvous daemon (refused); giving up", "exit 3"});
  }
}

TEST_CASE_METHOD(FencedFixture, "Supervisor: who comes back in time loses nothing",
                 "[supervisor]") {
  does(LinkDown{"gone"});
  CHECK(does(LinkUp{}, 19s) == Lines{"send heartbeat"});
  CHECK_FALSE(supervisor.deadline());
  does(LinkDown{"gone"});
  CHECK(supervisor.deadline() == now + 20s);  // Each time anew.
}

TEST_CASE_METHOD(FencedFixture,
                 "Supervisor: where the daemon's machine answers, nobody goes on without us",
                 "[supervisor]") {
  does(LinkDown{"gone"});
  for (int i = 0; i < 5; ++i) CHECK(does(LinkDown{"refused", true}, 15s).empty());
  CHECK(supervisor.deadline() == now + 20s);
  CHECK(does(LinkDown{"no answer", false}, 15s).empty());
  CHECK(does(Tick{}, 5s).back() == "signal SIGKILL");
}

TEST_CASE_METHOD(FencedFixture, "Supervisor: workers that end well in time need no fence",
                 "[supervisor]") {
  does(LinkDown{"gone"});
  does(ended(0, 0), 19s);
  does(ended(1, 0));
  CHECK(supervisor.deadline() == now + 70s);  // To report it.
  CHECK(does(LinkUp{}) == Lines{"send heartbeat", "send finished"});
}

TEST_CASE_METHOD(FencedFixture, "Supervisor: a node that stood still itself looks first",
                 "[supervisor]") {
  does(LinkDown{"gone"});
  CHECK(does(Tick{}, 60s).empty());
  CHECK(supervisor.deadline() == now + 2s);
  CHECK(does(Tick{}, 2s).back() == "signal SIGKILL");
}

TEST_CASE_METHOD(FencedFixture,
                 "Supervisor: a node that is cut off kills those that are ending, too",
                 "[supervisor]") {
  SECTION("the daemon was lost before") {
    does(LinkDown{"gone"});
    does(ended(1, 7), 10s);
    CHECK(does(Tick{}, 10s) == Lines{"say h is cut off from the rendezvous daemon (gone), and the "
                                     "run may continue without it: killing its workers",
                                     "signal SIGKILL"});
  }
  SECTION("the daemon is lost afterwards") {
    does(ended(1, 7));
    CHECK(
        does(LinkDown{"gone"}, 5s) ==
        Lines{"say lost the rendezvous daemon (gone); workers are ending; they are killed in 20 s "
              "unless it answers; connecting again"});
    CHECK(does(Tick{}, 20s).back() == "signal SIGKILL");
  }
  SECTION("and a daemon that is back in time leaves them their grace") {
    does(LinkDown{"gone"});
    does(ended(1, 7), 10s);
    CHECK(does(LinkUp{}, 9s) == Lines{"send heartbeat", "send failed"});
    CHECK(supervisor.deadline() == now + 21s);
    return;
  }
  CHECK(does(ended(0, 0, SIGKILL)) == Lines{"clean up"});
  CHECK(does(LinkUp{}) == Lines{"send heartbeat", "send failed"});
}

TEST_CASE_METHOD(FencedFixture, "Supervisor: the daemon may be back while the workers are killed",
                 "[supervisor]") {
  does(LinkDown{"gone"});
  does(Tick{}, 20s);
  does(LinkUp{});
  does(ended(0, 0, SIGKILL));
  SECTION("and not have missed us") {
    CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up", "send join"});
  }
  SECTION("and have stopped the round") {
    does(Received{StopRound{0, "this node was counted as lost", false}});
    CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up", "send stopped", "send join"});
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: only who can be replaced is fenced", "[supervisor]") {
  supervisor = Supervisor({.host = "h", .local_world_size = 2, .fence = 20s}, now);
  does(LinkUp{});
  does(assign(0));
  SECTION("not in a run that cannot go on without it") {
    does(LinkDown{"gone"});
    CHECK_FALSE(supervisor.deadline());
  }
  SECTION("but while a spare waits") {
    does(Received{rendezvous::Alive{.replaceable = true}});
    does(LinkDown{"gone"});
    CHECK(supervisor.deadline() == now + 20s);
  }
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: workers that survive SIGKILL are not waited for for ever",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 7));
  CHECK(does(Tick{}, 30s) ==
        Lines{"say 1 worker did not end in time: killing the rest", "signal SIGKILL"});
  REQUIRE(supervisor.deadline() == now + 10s);
  CHECK(does(Tick{}, 9s).empty());
  CHECK(does(Tick{}, 1s) ==
        Lines{"say SIGKILL does not end 1 worker of h; abandoning the stuck process", "abandon",
              "send leave", "exit 7"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: who leaves workers behind still waits for the verdict",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(ended(1, 7));
  does(Received{StopRound{0, "rank 1 exited with 7", true}});
  does(Tick{}, 30s);
  CHECK(does(Tick{}, 10s) ==
        Lines{"say SIGKILL does not end 1 worker of h; abandoning the stuck process", "abandon",
              "send stopped"});
  SECTION("and ends with it") { CHECK(does(verdict(7)) == Lines{"exit 7"}); }
  SECTION("but not for ever") {
    REQUIRE(supervisor.deadline() == now + 2s);
    CHECK(does(Tick{}, 2s) == Lines{"exit 7"});
  }
  SECTION("and does not come back if the run goes on after all") {
    CHECK(does(Received{StopRound{0, "a node joined", false}}) ==
          Lines{"send stopped", "send leave", "exit 7"});
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: without another cause such workers are the cause",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(Received{StopRound{0, "a node was lost", false}});
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
  CHECK(does(Received{StopRound{0, "a node was lost", false, 6}}) ==
        Lines{"say a node was lost; stopping, then starting again",
              "signal SIGTERM, rank 6 is lost"});
  REQUIRE(supervisor.deadline() == now + 30s);
  CHECK(does(Tick{}, 29s).empty());
  CHECK(does(Tick{}, 1s) ==
        Lines{"say 2 workers did not end in time: killing the rest", "signal SIGKILL"});
  does(ended(0, 0, SIGKILL));
  CHECK(does(ended(1, 0, SIGKILL)) == Lines{"clean up", "send stopped", "send join"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: workers go on without a daemon, which hears of them later",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(LinkDown{"reset"}) ==
        Lines{"say lost the rendezvous daemon (reset); workers continue, connecting again"});
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
  CHECK(does(Received{StopRound{0, "why", true}}) == Lines{"send stopped"});
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
    CHECK(does(Tick{}, 70s) == Lines{"say no rendezvous daemon (reset); giving up", "exit 9"});
  }
  SECTION("that vanished before the workers finished") {
    does(LinkUp{});
    does(assign(0));
    does(LinkDown{"reset"});
    does(ended(0, 0));
    does(ended(1, 0));
    CHECK(does(Tick{}, 70s) == Lines{"say every worker of this node exited with 0, but there is no "
                                     "rendezvous daemon to report to (reset)",
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
  CHECK(does(Received{Refuse{"--nnodes differs"}}) ==
        Lines{"say the rendezvous daemon refused h: --nnodes differs", "exit 3"});
}

TEST_CASE_METHOD(NodeFixture,
                 "Supervisor: a node that cannot read the daemon's messages leaves, once",
                 "[supervisor]") {
  does(LinkUp{});
  const CannotRead unreadable{"the daemon sends riddles"};
  SECTION("before its workers start") {
    CHECK(does(unreadable) ==
          Lines{"say h cannot stay in the run: the daemon sends riddles", "send leave", "exit 3"});
  }
  SECTION("while they compute") {
    does(assign(0));
    CHECK(does(unreadable) == Lines{"say h cannot stay in the run: the daemon sends riddles",
                                    "send leave", "signal SIGTERM"});
    CHECK(does(unreadable).empty());
    does(ended(0, 0, SIGTERM));
    CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up", "exit 3"});
  }
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: when the launcher dies, so does everything",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(does(LauncherDied{}) == Lines{"signal SIGKILL", "clean up", "exit 137"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: what is known of a signal goes with it to all nodes",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  CHECK(
      does(Signalled{SIGTERM, "the time limit of Slurm job 4 is reached"}).front() ==
      "say interrupted by SIGTERM: the time limit of Slurm job 4 is reached; stopping the workers");
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
  CHECK(does(Received{StopRound{0, "rank 0 exited with 97", true}}) == Lines{"send stopped"});
  CHECK(does(Received{StopRound{0, "h2 closed its connection", false}}) ==
        Lines{"send stopped", "send join"});
  CHECK(does(assign(1)) == Lines{"start round=1 restarts=0"});
}

TEST_CASE_METHOD(NodeFixture, "Supervisor: a drained node stops its workers and ends well",
                 "[supervisor]") {
  does(LinkUp{});
  does(assign(0));
  does(Received{StopRound{0, "h is drained", false}});
  does(ended(0, 0, SIGTERM));
  CHECK(does(ended(1, 0, SIGTERM)) == Lines{"clean up", "send stopped", "send join"});
  CHECK(does(Received{rendezvous::Dismiss{"new fans"}}) ==
        Lines{"say the run continues without h: new fans", "exit 0"});
}

}  // namespace
}  // namespace ddprun::agent
