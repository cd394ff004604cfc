// Workers that keep their process: what one agent does when a round ends that they survive.

#include <catch2/catch.hpp>
#include <csignal>

#include "agent/supervisor/supervisor.h"
#include "common/exit_status.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// A node of workers that have sent Ready, in round 0, with a daemon that keeps workers.
class ElasticNode {
 public:
  explicit ElasticNode(int workers, std::vector<int> preempt_signals = {}, int spares = 0)
      : supervisor_({.host = "h",
                     .local_world_size = workers,
                     .spares = spares,
                     .preempt_signals = std::move(preempt_signals)},
                    now_),
        workers_(workers) {
    does(LinkUp{});
    alive();
    assign(0, workers);
    Lines last;
    for (int i = 0; i < spares; ++i)
      last.push_back("spawn local rank " + std::to_string(workers + i));
    last.push_back("send slots");
    for (int i = 0; i < workers; ++i) CHECK(ready(i) == (i + 1 < workers ? Lines{} : last));
  }

  Lines does(const Event& event, Duration elapsed = 0s) {
    now_ += elapsed;
    Lines lines;
    sent_.clear();
    for (const Action& action : supervisor_.step(event, now_)) {
      lines.push_back(to_string(action));
      if (const auto* send = std::get_if<SendMessage>(&action)) sent_.push_back(send->message);
    }
    supervisor_.check_invariants();
    return lines;
  }
  Lines alive() { return does(Received{rendezvous::Alive{.keeps = true}}); }
  Lines ready(int local_rank) { return does(WorkerReady{local_rank}); }
  Lines left(int local_rank, int round) { return does(WorkerLeft{local_rank, round}); }
  Lines assign(int round, int workers) {
    rendezvous::Seat seat;
    seat.round = round;
    seat.workers = workers;
    return does(Received{rendezvous::Assign{seat}});
  }
  Lines stop(int round, bool keep, bool planned = false, int restart = 0) {
    rendezvous::StopRound stop{round, "so it is"};
    stop.restart = restart;
    stop.max_restarts = 3;
    stop.keep = keep;
    stop.planned = planned;
    return does(Received{stop});
  }
  static WorkerEnded end(int local_rank, int code, int signal = 0, bool by_us = false) {
    WorkerDeath death;
    death.local_rank = death.rank = local_rank;
    death.pid = 10 + local_rank;
    death.exit_code = code;
    death.signal = signal;
    death.stopped_by_us = by_us;
    return WorkerEnded{death};
  }
  const rendezvous::Slots& slots() const { return std::get<rendezvous::Slots>(sent_.back()); }
  const rendezvous::Leave& leave() const { return std::get<rendezvous::Leave>(sent_.back()); }
  Supervisor& supervisor() { return supervisor_; }

 private:
  TimePoint now_{};
  Supervisor supervisor_;
  int workers_;
  std::vector<rendezvous::AgentMessage> sent_;  // By the last step.
};

TEST_CASE("Supervisor: of elastic workers the survivors stay, and the dead one is replaced") {
  ElasticNode node(3);
  CHECK(node.does(ElasticNode::end(1, 7)) ==
        Lines{"say rank 1 (pid 11) exited with 7", "send failed", "fence round=0"});
  CHECK(node.left(0, 0).empty());
  CHECK(node.left(2, 0).empty());  // The daemon has not sent how to go on.
  CHECK(node.stop(0, true, false, 1) ==
        Lines{"say so it is; the other workers continue (restart 1 of 3)", "spawn local rank 1",
              "send stopped", "send join with 2 living"});
  CHECK(node.assign(1, 2) == Lines{"seat round=1 local ranks 0 2"});
  CHECK(node.ready(1) == Lines{"send slots"});
  CHECK(node.slots().round == 1);
  CHECK(node.slots().kept == 2);
  CHECK(node.slots().parked == 1);
  CHECK(node.stop(1, true, true) ==
        Lines{"say so it is at the next boundary between steps", "announce change of round=1"});
  CHECK(node.stop(1, true, true).empty());  // Received twice.
  CHECK(node.left(2, 1).empty());
  CHECK(node.left(0, 1) == Lines{"send stopped", "send join with 3 living"});
  CHECK(node.assign(2, 3) == Lines{"seat round=2 local ranks 0 1 2"});
}

TEST_CASE("Supervisor: without all of its workers ready, or an old daemon, a node is plain") {
  ElasticNode node(2);
  CHECK(node.does(WorkerPlain{1}) == Lines{"send slots"});
  CHECK(node.slots().kept == 0);
  CHECK(node.does(ElasticNode::end(1, 7)).at(1) == "send failed");

  Supervisor old({.host = "h", .local_world_size = 2}, TimePoint{});
  const auto step = [&](const Event& event) { return old.step(event, TimePoint{}); };
  (void)step(LinkUp{});
  (void)step(Received{rendezvous::Alive{}});  // Without a flag that it keeps workers.
  (void)step(Received{rendezvous::Assign{}});
  CHECK(step(WorkerReady{0}).empty());
  CHECK(step(WorkerReady{1}).empty());  // It could not read Slots.
  CHECK(to_string(step(ElasticNode::end(1, 7)).back()) == "signal SIGTERM, rank 1 is lost");
}

TEST_CASE("Supervisor: who does not leave the round in time is killed, and replaced") {
  ElasticNode node(3);
  CHECK(node.stop(0, true) == Lines{"say so it is; the other workers continue", "fence round=0"});
  CHECK(node.left(0, 0).empty());
  CHECK(node.left(1, 0).empty());
  CHECK(node.does(Tick{}, 5s) ==
        Lines{"say 1 worker did not leave the round in time: killing what stays in it",
              "kill local ranks 2"});
  CHECK(node.left(2, 0).empty());  // It has left in the last moment, and is about to die.
  CHECK(node.does(ElasticNode::end(2, 0, SIGKILL, /*by_us=*/true)) ==
        Lines{"send stopped", "spawn local rank 2", "send join with 2 living"});
  CHECK(node.ready(2) == Lines{"send join with 3 living"});
}

TEST_CASE("Supervisor: a planned change that takes too long ends by a fence") {
  ElasticNode node(2);
  CHECK(node.stop(0, true, /*planned=*/true).size() == 2);
  CHECK(node.does(Tick{}, 30s).back() == "fence round=0");
  CHECK(node.left(0, 0).empty());
  CHECK(node.left(1, 0) == Lines{"send stopped", "send join with 2 living"});
}

TEST_CASE("Supervisor: a death in a planned change is reported, and fences at once") {
  ElasticNode node(2);
  CHECK(node.stop(0, true, /*planned=*/true).size() == 2);
  CHECK(node.does(ElasticNode::end(1, 7)) ==
        Lines{"say rank 1 (pid 11) exited with 7", "send failed", "fence round=0"});
  CHECK(node.left(0, 0).empty());
  CHECK(node.stop(0, true, /*planned=*/true).empty());  // It crossed the report.
  CHECK(node.stop(0, true, false, 1).back() == "send join with 1 living");
}

TEST_CASE("Supervisor: a round that does not keep its workers ends them, fenced or not") {
  ElasticNode node(2);
  (void)node.does(ElasticNode::end(1, 7));
  CHECK(node.left(0, 0).empty());
  CHECK(node.stop(0, false) ==
        Lines{"say so it is; stopping, then starting again", "signal SIGTERM, rank 1 is lost"});
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) ==
        Lines{"clean up", "send stopped", "send join"});
  CHECK(node.assign(1, 2) == Lines{"start round=1 restarts=0"});
}

TEST_CASE("Supervisor: a node without a worker says so, and comes when a replacement is ready") {
  ElasticNode node(1);
  (void)node.does(ElasticNode::end(0, 7));
  CHECK(node.stop(0, true, false, 1) == Lines{"say so it is; starting all again (restart 1 of 3)",
                                              "spawn local rank 0", "send stopped",
                                              "send join with 0 living"});
  CHECK(node.ready(0) == Lines{"send join with 1 living"});
  CHECK(node.assign(1, 1) == Lines{"seat round=1 local ranks 0"});
}

TEST_CASE("Supervisor: what is lost, or waited for, is said instead of that others continue") {
  const auto join_text = [](ElasticNode& node, std::int64_t lost_steps, bool waits) {
    (void)node.does(ElasticNode::end(0, 7));
    rendezvous::StopRound stop{0, "so it is"};
    stop.restart = 1;
    stop.max_restarts = 3;
    stop.keep = true;
    stop.lost_steps = lost_steps;
    stop.waits = waits;
    return node.does(Received{stop}).front();
  };
  ElasticNode last(1), two(2);
  CHECK(join_text(last, 97, false) ==
        "say so it is; no worker is left that has the state: the job begins again, 97 steps are "
        "lost unless a checkpoint has them (restart 1 of 3)");
  CHECK(join_text(two, 0, true) ==
        "say so it is; the other workers wait for more, with their state (restart 1 of 3)");
}

TEST_CASE(
    "Supervisor: an agent says how many of its workers have the state, and of how many steps") {
  ElasticNode node(2);
  const auto joined = [&](const Event& event) {
    for (const Action& action : node.supervisor().step(event, TimePoint{} + 1h)) {
      if (const auto* join = std::get_if<SendJoin>(&action)) return *join;
    }
    return SendJoin{.holders = -1};
  };
  (void)node.does(WorkerResumed{0, 0, 40});
  (void)node.does(WorkerResumed{1, 0, 40});
  WorkerEnded end = ElasticNode::end(0, 7);
  end.death.kept_steps = 60;
  (void)node.does(end);
  (void)node.does(WorkerLeft{1, 0, 61});
  rendezvous::StopRound stop{0, "so it is"};
  stop.restart = 1;
  stop.keep = true;
  const SendJoin join = joined(Received{stop});
  CHECK(join.holders == 1);  // The replacement has not.
  CHECK(join.kept_steps == 61);
  const SendJoin later = joined(WorkerReady{0, 2});
  CHECK(later.workers == 2);
  CHECK(later.holders == 1);
  CHECK(later.min_ranks == 2);
  rendezvous::Seat seat;
  seat.round = 1;
  seat.workers = 2;
  seat.lost_steps = 61;  // As if no worker had it.
  (void)joined(Received{rendezvous::Assign{seat}});
  (void)joined(WorkerEnded{ElasticNode::end(1, 7).death});
  (void)joined(WorkerLeft{0, 1});
  stop.round = 1;
  CHECK(joined(Received{stop}).kept_steps == 0);
}

TEST_CASE("Supervisor: a replacement that is ready in the last moment takes no survivor's seat") {
  ElasticNode node(3);
  (void)node.does(ElasticNode::end(0, 7));
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.left(2, 0);
  CHECK(node.stop(0, true, false, 1).back() == "send join with 1 living");
  CHECK(node.ready(0) == Lines{"send join with 2 living"});
  CHECK(node.assign(1, 1) == Lines{"seat round=1 local ranks 2", "send slots"});  // It crossed.
  CHECK(node.slots().parked == 1);
  CHECK(node.ready(1) == Lines{"send slots"});
  (void)node.stop(1, true);
  CHECK(node.left(2, 1) == Lines{"send stopped", "send join with 3 living"});
  CHECK(node.assign(2, 2) == Lines{"seat round=2 local ranks 0 2", "send slots"});
}

TEST_CASE("Supervisor: the last words of a worker without a seat come while its node stops") {
  ElasticNode node(3);
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.left(0, 0);
  (void)node.left(2, 0);
  (void)node.stop(0, true, false, 1);
  CHECK(node.assign(1, 2) == Lines{"seat round=1 local ranks 0 2"});
  (void)node.does(Signalled{SIGTERM});
  WorkerEnded parked = ElasticNode::end(1, 7), seated = ElasticNode::end(0, 7);
  parked.output_follows = seated.output_follows = true;
  CHECK(node.does(parked).empty());
  CHECK(node.does(seated).empty());
  CHECK(node.does(ElasticNode::end(2, 0, SIGTERM, true)).empty());
  CHECK(node.does(LastOutput{parked.death}).empty());
  CHECK(node.does(LastOutput{seated.death}).front() == "clean up");
}

TEST_CASE("Supervisor: a worker without a seat that ends is replaced when the daemon agrees") {
  ElasticNode node(2);
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.left(0, 0);
  (void)node.stop(0, true, false, 1);
  (void)node.assign(1, 1);
  CHECK(node.does(ElasticNode::end(1, 7)) ==
        Lines{"say local rank 1 (pid 11) exited with 7, before it had a seat", "send slots"});
  CHECK(node.slots().fallen == 1);
  CHECK(node.does(Received{rendezvous::Respawn{1, 2}}) == Lines{"spawn local rank 1"});
  CHECK(node.does(Received{rendezvous::Respawn{1, 2}}).empty());  // Received twice.
  CHECK(node.does(ElasticNode::end(1, 7)).back() == "send slots");
  CHECK(node.does(Received{rendezvous::Respawn{1, 2, 1}}) ==
        Lines{"say the place of local rank 1 on h stays empty, because no restart is left: the run "
              "goes on without. A larger --max-restarts allows more"});
  CHECK(node.does(Received{rendezvous::Respawn{1, 2, 1}}).empty());
  // The seat was for more than are left.
  ElasticNode other(2);
  (void)other.stop(0, true);
  (void)other.left(0, 0);
  (void)other.left(1, 0);
  CHECK(other.does(ElasticNode::end(1, 7)).at(1) == "send join with 1 living");
  CHECK(other.assign(1, 2).at(0) == "send join with 1 living");
  CHECK(other.supervisor().round() == -1);
}

TEST_CASE("Supervisor: parked workers end when the seated ones have finished") {
  ElasticNode node(2);
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.left(0, 0);
  (void)node.stop(0, true, false, 1);
  (void)node.assign(1, 1);
  (void)node.ready(1);
  CHECK(node.does(ElasticNode::end(0, 0)) == Lines{"send finished", "signal SIGTERM"});
  CHECK(node.does(Received{rendezvous::EndRun{}}) == Lines{"signal SIGTERM"});
  CHECK(node.does(ElasticNode::end(1, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up", "exit 0"});
}

TEST_CASE("Supervisor: who ends well after a round in which another has failed is started again") {
  ElasticNode node(3);
  for (int i = 0; i < 3; ++i) CHECK(node.does(WorkerResumed{i, 0}).empty());
  (void)node.does(ElasticNode::end(1, 0, SIGKILL));
  CHECK(node.does(ElasticNode::end(0, 0)).empty());  // While it leaves, ...
  (void)node.left(2, 0);
  (void)node.stop(0, true, false, 1);
  CHECK(node.does(ElasticNode::end(2, 0)) ==  // ... or while it waits for its next seat.
        Lines{"say the workers of h have finished, but others of the round failed: starting again",
              "spawn local rank 0", "spawn local rank 2", "send join with 0 living"});
  CHECK(node.ready(1) == Lines{"send join with 1 living"});
}

TEST_CASE("Supervisor: who ends well in a round that it never took part in ends that round") {
  ElasticNode node(2);
  for (int i = 0; i < 2; ++i) (void)node.does(WorkerResumed{i, 0});
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.left(0, 0);
  (void)node.stop(0, true, false, 1);
  (void)node.assign(1, 1);
  CHECK(node.does(ElasticNode::end(0, 0)) ==
        Lines{"fence round=1", "send stopped",
              "say the workers of h have finished, but others of the round failed: starting again",
              "spawn local rank 0", "send join with 0 living"});
  // One that took part has finished.
  ElasticNode other(2);
  for (int i = 0; i < 2; ++i) (void)other.does(WorkerResumed{i, 0});
  (void)other.does(ElasticNode::end(1, 7));
  (void)other.left(0, 0);
  (void)other.stop(0, true, false, 1);
  (void)other.assign(1, 1);
  (void)other.does(WorkerResumed{0, 1});
  CHECK(other.does(ElasticNode::end(0, 0)) == Lines{"send finished", "signal SIGTERM"});
}

TEST_CASE(
    "Supervisor: a node whose time is over leaves like a drained one, and says so by its status") {
  ElasticNode node(1, {SIGUSR1});
  CHECK(node.does(Signalled{SIGUSR1}) == Lines{"send leave"});
  CHECK(node.leave().planned);
  CHECK(node.does(Signalled{SIGUSR1}, 1s).empty());  // It came twice.
  CHECK(node.stop(0, true, /*planned=*/true).back() == "announce change of round=0");
  CHECK(node.left(0, 0) == Lines{"send stopped", "send join with 1 living"});
  CHECK(node.does(LinkDown{"it broke"}).size() == 1);
  CHECK(node.does(LinkUp{}) == Lines{"send join with 1 living", "send leave"});
  CHECK(node.does(Received{rendezvous::Dismiss{"pre-empted by SIGUSR1"}}) ==
        Lines{"say h has left the run: pre-empted by SIGUSR1", "signal SIGTERM"});
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)).back() == "exit 75");
  ElasticNode preempted(1, {SIGUSR1});  // Others may start again; it does not.
  CHECK(preempted.does(Signalled{SIGUSR1}) == Lines{"send leave"});
  CHECK(preempted.stop(0, false)[0] == "say so it is; stopping, then leaving the run");
}

TEST_CASE("Supervisor: without a daemon that could let it go, a pre-empted node leaves at once") {
  ElasticNode alone(1, {SIGUSR1});
  (void)alone.does(LinkDown{"it broke"});
  CHECK(alone.does(Signalled{SIGUSR1}) ==
        Lines{"say pre-empted by SIGUSR1; stopping the workers", "signal SIGTERM"});
  SECTION("and the daemon stays away") {
    CHECK(alone.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up"});
    CHECK(alone.does(Tick{}, 2s) == Lines{"exit 75"});
  }
  SECTION("and the daemon is back: it does not take it for an interruption of the run") {
    CHECK(alone.does(LinkUp{}) == Lines{"send leave"});
    CHECK(alone.leave().planned);
  }
}

TEST_CASE("Supervisor: the daemon goes before it has let a pre-empted node go") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  (void)node.does(LinkDown{"it broke"});
  SECTION("and is back") {
    CHECK(node.does(LinkUp{}, 1s).back() == "send leave");
    CHECK(node.does(Tick{}, 30s).empty());
    CHECK(node.stop(0, true, /*planned=*/true).back() == "announce change of round=0");
  }
  SECTION("and stays away") {
    CHECK(node.does(Tick{}, 1s).empty());
    CHECK(node.does(Tick{}, 1s).back() == "signal SIGTERM");
    CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up"});
    CHECK(node.does(Tick{}, 2s) == Lines{"exit 75"});
  }
}

TEST_CASE("Supervisor: a daemon that decides nothing does not keep a pre-empted node") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  CHECK(node.does(Tick{}, 39s).empty());
  CHECK(node.does(Tick{}, 1s).back() == "signal SIGTERM");
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up", "exit 75"});
}

TEST_CASE("Supervisor: whatever ends the run of a pre-empted node, it exits with 75") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  SECTION("the daemon was told to end") {
    (void)node.does(Received{rendezvous::EndRun{{.exit_code = 143}}});
  }
  SECTION("the scheduler asks again, by another signal") { (void)node.does(Signalled{SIGTERM}); }
  SECTION("a worker failed") {
    (void)node.stop(0, false);
    (void)node.does(Received{rendezvous::EndRun{{.exit_code = 7}}});
  }
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)).back() == "exit 75");
}

TEST_CASE("Supervisor: a pre-empted node whose run succeeds has nothing more to do") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  (void)node.does(ElasticNode::end(0, 0));
  CHECK(node.does(Received{rendezvous::EndRun{{.exit_code = 0}}}) == Lines{"exit 0"});
}

// A node that has left at a boundary, after the end of its worker.
void leave(ElasticNode& node, const rendezvous::Dismiss& dismiss) {
  (void)node.stop(0, true, /*planned=*/true);
  (void)node.left(0, 0);
  (void)node.does(Received{dismiss});
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up"});
}

TEST_CASE(
    "Supervisor: a pre-empted node keeps the daemon of the others for as long as it has time") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  const rendezvous::Dismiss others_go_on{"its time is over", /*hosts=*/true};
  leave(node, others_go_on);
  CHECK(node.does(Received{others_go_on}, 1s).empty());
  SECTION("until nobody needs it") {
    CHECK(node.does(Received{rendezvous::Dismiss{"its time is over"}}) == Lines{"exit 75"});
  }
  SECTION("until the run has failed") {
    CHECK(node.does(Received{rendezvous::EndRun{{.exit_code = 7}}}) == Lines{"exit 75"});
  }
  SECTION("until the run has succeeded") {
    CHECK(node.does(Received{rendezvous::EndRun{{.exit_code = 0}}}) == Lines{"exit 0"});
  }
  SECTION("at most for the grace, from the signal on") {
    CHECK(node.does(Received{others_go_on}, 28s).empty());
    CHECK(node.does(Tick{}, 1s) == Lines{"exit 75"});
  }
  SECTION("until the scheduler asks again") {
    CHECK(node.does(Signalled{SIGTERM}).back() == "exit 75");
  }
  SECTION("though its link breaks for a moment") {
    (void)node.does(LinkDown{"it broke"});
    CHECK(node.does(LinkUp{}, 1s) == Lines{"send heartbeat"});
    CHECK(node.does(Received{others_go_on}).empty());
    CHECK(node.does(Received{rendezvous::Dismiss{"its time is over"}}) == Lines{"exit 75"});
  }
  SECTION("until the daemon is another, which does not know it") {
    CHECK(node.stop(0, false) == Lines{"exit 75"});
  }
}

TEST_CASE("Supervisor: a drained node keeps the daemon of the others until they need it no more") {
  ElasticNode node(1);
  leave(node, {"its fans", /*hosts=*/true});
  CHECK(node.does(Tick{}, 24h).empty());
  SECTION("they have ended") {
    CHECK(node.does(Received{rendezvous::Dismiss{"its fans"}}) == Lines{"exit 0"});
  }
  SECTION("the run has failed: that is not its failure") {
    CHECK(node.does(Received{rendezvous::EndRun{{.exit_code = 7}}}) == Lines{"exit 0"});
  }
  SECTION("it is told to end, and its launcher must know that they go on") {
    CHECK(node.does(Signalled{SIGTERM}).back() == "exit 75");
  }
}

TEST_CASE("Supervisor: who left stays for the others of its scheduler's step, however long") {
  ElasticNode node(1, {SIGUSR1});
  (void)node.does(Signalled{SIGUSR1});
  leave(node, {.reason = "its time is over", .for_step = true});
  CHECK(node.does(Tick{}, 24h).empty());
  SECTION("and then for those that need its daemon, as long as it has time") {
    CHECK(node.does(Received{rendezvous::Dismiss{"its time is over", /*hosts=*/true}}).empty());
    CHECK(node.does(Tick{}, 5s) == Lines{"exit 75"});
  }
  SECTION("and then goes") {
    CHECK(node.does(Received{rendezvous::Dismiss{"its time is over"}}) == Lines{"exit 75"});
  }
}

TEST_CASE("Supervisor: after a daemon that has gone for good a lost rank ends the run, and soon") {
  ElasticNode node(1);
  rendezvous::Alive alive{.keeps = true};
  alive.last = true;
  (void)node.does(Received{alive});
  (void)node.does(LinkDown{"it broke"});
  CHECK(node.does(Tick{}, 24h).empty());
  CHECK(node.left(0, 0).empty());
  SECTION("unless a daemon is there again") {
    CHECK(node.does(LinkUp{}, 1s).front() == "send heartbeat");
    CHECK(node.does(Tick{}, 2s).empty());
  }
  SECTION("without one") {
    CHECK(node.does(Tick{}, 2s).back() == "signal SIGTERM");
    CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) ==
          Lines{"clean up", "exit 3"});
  }
}

TEST_CASE("Supervisor: a daemon that has gone for good decides against no node: no fence") {
  Supervisor supervisor({.host = "h", .fence = 70s, .fence_always = true}, TimePoint{});
  rendezvous::Seat seat;
  (void)supervisor.step(LinkUp{}, TimePoint{});
  (void)supervisor.step(Received{rendezvous::Alive{.keeps = true}}, TimePoint{});
  (void)supervisor.step(Received{rendezvous::Assign{seat}}, TimePoint{});
  const bool for_good = GENERATE(true, false);
  rendezvous::Alive alive{.keeps = true};
  alive.last = for_good;
  CHECK(supervisor.step(Received{alive}, TimePoint{}).size() == (for_good ? 1 : 0));
  (void)supervisor.step(LinkDown{"it broke"}, TimePoint{});
  CHECK(supervisor.deadline().has_value() != for_good);
}

TEST_CASE("Supervisor: a node whose host is withdrawn says so, and its workers get SIGTERM") {
  ElasticNode node(1, {kLeaveSignal});
  CHECK(node.does(Signalled{kLeaveSignal}) == Lines{"send leave"});
  CHECK(node.leave().planned);
  CHECK(node.leave().reason == "its host is not listed any more");
  ElasticNode alone(1, {kLeaveSignal});
  (void)alone.does(LinkDown{"it broke"});
  CHECK(alone.does(Signalled{kLeaveSignal}).back() == "signal SIGTERM");
}

TEST_CASE("Supervisor: a node that comes to a round that keeps its workers prepares its own") {
  Supervisor supervisor({.host = "h", .local_world_size = 2}, TimePoint{});
  const auto does = [&](const Event& event) {
    Lines lines;
    for (const Action& action : supervisor.step(event, TimePoint{})) {
      lines.push_back(to_string(action));
      if (const auto* join = std::get_if<SendJoin>(&action)) {
        lines.back() += ", " + std::to_string(join->beginning) + " begin";
      }
    }
    supervisor.check_invariants();
    return lines;
  };
  CHECK(does(LinkUp{}) == Lines{"send join, 0 begin"});
  CHECK(does(Received{rendezvous::Prepare{1}}) ==
        Lines{"spawn local rank 0", "spawn local rank 1",
              "say h starts 2 workers; they get seats when they are ready",
              "send join with 0 living, 2 begin"});
  CHECK(does(Received{rendezvous::Prepare{1}}).empty());  // Received twice.
  CHECK(does(WorkerReady{1}) == Lines{"send join with 1 living, 1 begin"});
  CHECK(does(LinkDown{"it broke"}).size() == 1);
  CHECK(does(LinkUp{}) == Lines{"send join with 1 living, 1 begin"});
  CHECK(does(WorkerReady{0}) == Lines{"send join with 2 living, 0 begin"});
  rendezvous::Seat seat;
  seat.round = 5;
  seat.workers = 2;
  CHECK(does(Received{rendezvous::Assign{seat}}) == Lines{"seat round=5 local ranks 0 1"});
}

TEST_CASE("Supervisor: a spare takes the seat of a worker that ends, and another spare begins") {
  ElasticNode node(2, {}, /*spares=*/1);
  CHECK(node.ready(2) == Lines{"send slots"});
  CHECK(node.slots().kept == 2);
  CHECK(node.slots().parked == 0);  // The round is not to grow.
  CHECK(node.slots().spares == 1);
  (void)node.does(ElasticNode::end(0, 7));
  (void)node.left(1, 0);
  CHECK(node.stop(0, true, false, 1) ==
        Lines{"say so it is; the other workers continue (restart 1 of 3)", "spawn local rank 0",
              "send stopped", "send join with 2 living"});
  CHECK(node.assign(1, 2) == Lines{"seat round=1 local ranks 1 2"});
  CHECK(node.ready(0) == Lines{"send slots"});
  CHECK(node.slots().parked == 0);
  CHECK(node.slots().spares == 1);
  // Of two that end a spare replaces one; the round grows by the other later.
  (void)node.does(ElasticNode::end(1, 7));
  (void)node.does(ElasticNode::end(2, 7));
  CHECK(node.stop(1, true, false, 2).back() == "send join with 1 living");
  CHECK(node.assign(2, 1) == Lines{"seat round=2 local ranks 0"});
  CHECK(node.ready(2) == Lines{"send slots"});
  CHECK(node.slots().parked == 1);
  CHECK(node.ready(1) == Lines{"send slots"});
  CHECK(node.slots().parked == 1);
  CHECK(node.slots().spares == 1);
  // It offers no more workers than it has seats for.
  CHECK(node.stop(2, true, /*planned=*/true).size() == 2);
  CHECK(node.left(0, 2) == Lines{"send stopped", "send join with 2 living"});
}

TEST_CASE("Supervisor: plain workers have no spares") {
  Supervisor plain({.host = "h", .local_world_size = 2, .spares = 3}, TimePoint{});
  const auto step = [&](const Event& event) { return plain.step(event, TimePoint{}); };
  (void)step(LinkUp{});
  (void)step(Received{rendezvous::Alive{.keeps = true}});
  CHECK(step(Received{rendezvous::Assign{}}).size() == 1);
  CHECK(step(WorkerReady{0}).empty());
  CHECK(step(ElasticNode::end(0, 0)).empty());
  CHECK(to_string(step(ElasticNode::end(1, 0)).back()) == "send finished");
}

TEST_CASE("Supervisor: a node that prepares ends its workers with the run") {
  Supervisor supervisor({.host = "h", .local_world_size = 1}, TimePoint{});
  const auto does = [&](const Event& event) {
    Lines lines;
    for (const Action& action : supervisor.step(event, TimePoint{})) {
      lines.push_back(to_string(action));
    }
    supervisor.check_invariants();
    return lines;
  };
  (void)does(LinkUp{});
  (void)does(Received{rendezvous::Prepare{}});
  CHECK(does(Received{rendezvous::EndRun{}}) == Lines{"signal SIGTERM"});
  CHECK(does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up", "exit 0"});
}

// A node of two workers that comes to a round which keeps its workers.
class Newcomer {
 public:
  explicit Newcomer(Duration ready_limit)
      : supervisor_({.host = "h", .local_world_size = 2, .ready_limit = ready_limit}, now_) {
    (void)does(LinkUp{});
    CHECK(does(Received{rendezvous::Prepare{1}}).back() == "send join with 0 living");
  }

  // The advice, which is the same each time, is cut off.
  Lines does(const Event& event, Duration elapsed = 0s) {
    now_ += elapsed;
    Lines lines;
    for (const Action& action : supervisor_.step(event, now_)) {
      const std::string line = to_string(action);
      lines.push_back(line.substr(0, line.find(". The workers of this run")));
    }
    supervisor_.check_invariants();
    return lines;
  }
  Duration left() const { return supervisor_.deadline().value() - now_; }
  bool waits() const { return supervisor_.deadline().has_value(); }

 private:
  TimePoint now_{};
  Supervisor supervisor_;
};

TEST_CASE("Supervisor: a node none of whose workers gets ready leaves, and says what it missed") {
  Newcomer node(60s);
  CHECK(node.left() == 60s);
  // Replacing one that ended gives the others no more time.
  CHECK(node.does(ElasticNode::end(1, 7), 20s).at(1) == "send join with 0 living");
  CHECK(node.does(Received{rendezvous::Respawn{1, 2}}) == Lines{"spawn local rank 1"});
  CHECK(node.left() == 40s);
  CHECK(node.does(Tick{}, 40s) ==
        Lines{"say h leaves the run: none of its workers (local ranks 0-1) has opened its link to "
              "ddprun within 60 s",
              "send leave", "signal SIGTERM"});
  // The daemon counts it out, and answers its heartbeats so.
  CHECK(node.does(Received{rendezvous::StopRound{-1, "this node was counted as lost"}}).empty());
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)).empty());
  CHECK(node.does(ElasticNode::end(1, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up", "exit 4"});
  CHECK(!node.waits());
}

TEST_CASE("Supervisor: one worker that is ready is enough for a node to stay") {
  Newcomer node(60s);
  CHECK(node.does(WorkerReady{1}, 59s) == Lines{"send join with 1 living"});
  CHECK(node.does(Tick{}, 1s).back() == "kill local ranks 0");  // That one was not, in time.
  (void)node.does(ElasticNode::end(0, 0, SIGKILL, /*by_us=*/true));
  CHECK(!node.waits());
  // It is gone again: the time begins anew.
  CHECK(node.does(ElasticNode::end(1, 7), 600s).at(1) == "send join with 0 living");
  CHECK(node.left() == 60s);
}

TEST_CASE("Supervisor: a machine that stood still has its workers' time anew") {
  Newcomer node(60s);
  CHECK(node.does(Tick{}, 62s).empty());
  CHECK(node.left() == 60s);
  CHECK(node.does(Tick{}, 60s).size() == 3);
}

TEST_CASE("Supervisor: a node without a link says that it leaves as soon as it has one, or ends") {
  for (const bool comes_back : {true, false}) {
    Newcomer node(60s);
    (void)node.does(LinkDown{"it broke"});
    CHECK(node.does(Tick{}, 60s).back() == "signal SIGTERM");
    (void)node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true));
    CHECK(node.does(ElasticNode::end(1, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up"});
    if (comes_back) CHECK(node.does(LinkUp{}) == Lines{"send leave", "exit 4"});
    if (!comes_back) CHECK(node.does(Tick{}, 2s) == Lines{"exit 4"});
  }
}

TEST_CASE("Supervisor: a node whose workers have all ended, and may not be replaced, leaves") {
  Newcomer node(60s);
  (void)node.does(ElasticNode::end(0, 7));
  (void)node.does(ElasticNode::end(1, 7));
  CHECK(node.does(Tick{}, 60s) ==
        Lines{"say h leaves the run: none of its workers (local ranks 0-1) has opened its link to "
              "ddprun within 60 s; all have ended, and no restart is left",
              "send leave", "exit 4"});
}

TEST_CASE("Supervisor: a program that ends well without a link is not started again and again") {
  Newcomer node(60s);
  CHECK(node.does(ElasticNode::end(1, 0)) ==
        Lines{"say h leaves the run: local rank 1 (pid 11) exited with 0 before it opened its link "
              "to ddprun",
              "send leave", "signal SIGTERM"});
  CHECK(node.does(ElasticNode::end(0, 0)) == Lines{"clean up", "exit 4"});
  // Beside one that has a link it is a worker that ended too early, as any other.
  Newcomer other(60s);
  (void)other.does(WorkerReady{0});
  CHECK(other.does(ElasticNode::end(1, 0)).at(0) ==
        "say local rank 1 (pid 11) exited with 0, before it had a seat");
}

TEST_CASE("Supervisor: a node that lost all its workers leaves if no replacement gets ready") {
  ElasticNode node(1);
  (void)node.does(ElasticNode::end(0, 7));
  CHECK(node.stop(0, true, false, 1).back() == "send join with 0 living");
  CHECK(node.does(Tick{}, 600s).back() == "signal SIGTERM");
  CHECK(node.does(ElasticNode::end(0, 0, SIGTERM, /*by_us=*/true)) == Lines{"clean up", "exit 4"});
}

TEST_CASE("Supervisor: on a new link the daemon hears again who can be kept") {
  ElasticNode node(2);
  (void)node.does(LinkDown{"it broke"});
  CHECK(node.does(LinkUp{}) == Lines{"send heartbeat", "send slots"});
  CHECK(node.slots().kept == 2);
  CHECK(node.alive().empty());
}

}  // namespace
}  // namespace ddprun::agent
