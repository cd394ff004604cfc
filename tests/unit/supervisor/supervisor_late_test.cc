// A worker without a seat that never gets ready for one, beside others that compute.

#include <catch2/catch.hpp>
#include <csignal>

#include "agent/supervisor/supervisor.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// A node of three workers. After replace() local rank 2 has died in round 0, its replacement has
// begun, and the others compute in round 1.
class WaitingNode {
 public:
  explicit WaitingNode(int spares = 0)
      : supervisor_({.host = "h", .local_world_size = 3, .spares = spares, .ready_limit = 60s},
                    now_) {
    (void)does(LinkUp{});
    (void)does(Received{rendezvous::Alive{.keeps = true}});
    assign(0, 3);
    for (const int local_rank : {0, 1, 2}) (void)does(WorkerReady{local_rank});
  }

  void replace() {
    (void)does(end(2, 7));
    rendezvous::StopRound stop{0, "rank 2 exited with 7"};
    stop.restart = 1;
    stop.keep = true;
    CHECK(does(Received{stop}).back() == "spawn local rank 2");
    (void)does(WorkerLeft{0, 0});
    (void)does(WorkerLeft{1, 0});
    assign(1, 2);
    CHECK(supervisor_.running());
  }
  void assign(int round, int workers) {
    rendezvous::Seat seat;
    seat.round = round;
    seat.workers = workers;
    (void)does(Received{rendezvous::Assign{seat}});
  }
  Lines does(const Event& event, Duration elapsed = 0s) {
    now_ += elapsed;
    Lines lines;
    fallen_ = 0;
    for (const Action& action : supervisor_.step(event, now_)) {
      lines.push_back(to_string(action));
      const auto* send = std::get_if<SendMessage>(&action);
      if (!send) continue;
      const auto* slots = std::get_if<rendezvous::Slots>(&send->message);
      if (slots) fallen_ = slots->fallen;
    }
    supervisor_.check_invariants();
    return lines;
  }
  static WorkerEnded end(int local_rank, int code, int signal = 0, bool by_us = false) {
    WorkerDeath death{.rank = local_rank, .local_rank = local_rank, .pid = 10 + local_rank};
    death.exit_code = code;
    death.signal = signal;
    death.stopped_by_us = by_us;
    return WorkerEnded{death};
  }
  int fallen() const { return fallen_; }  // As the last step has reported it; 0: it has not.
  std::optional<Duration> left() const {
    const auto due = supervisor_.deadline();
    return due ? std::optional(*due - now_) : std::nullopt;
  }
  const Supervisor& supervisor() const { return supervisor_; }

 private:
  TimePoint now_{};
  Supervisor supervisor_;
  int fallen_ = 0;
};

constexpr const char* kLate2 =
    "say local rank 2 of h has not opened its link to ddprun within 60 s and so has no seat: "
    "killing it; another is started for each while a restart is left. If the program takes longer "
    "to begin, set join_timeout in --rdzv-conf";

TEST_CASE("Supervisor: a replacement that is not ready in time is ended as one that failed") {
  WaitingNode node;
  CHECK(!node.left());
  node.replace();
  CHECK(node.left() == 60s);
  CHECK(node.does(Tick{}, 60s) == Lines{kLate2, "kill local ranks 2"});
  CHECK(!node.left());                       // That is logged once.
  CHECK(node.does(WorkerReady{2}).empty());  // Too late: it dies any moment.
  // What became of it has been reported; the daemon counts it.
  CHECK(node.does(WaitingNode::end(2, 0, SIGKILL, /*by_us=*/true)) == Lines{"send slots"});
  CHECK(node.fallen() == 1);
  CHECK(node.supervisor().running());
  CHECK(node.does(Received{rendezvous::Respawn{1, 2}}) == Lines{"spawn local rank 2"});
  CHECK(node.left() == 60s);
  CHECK(node.does(WorkerReady{2}, 59s) == Lines{"send slots"});
  CHECK(!node.left());
}

TEST_CASE("Supervisor: one that ends by itself as it is killed for being late says how") {
  WaitingNode node;
  node.replace();
  (void)node.does(Tick{}, 60s);
  CHECK(node.does(WaitingNode::end(2, 7)) ==
        Lines{"say local rank 2 (pid 12) exited with 7, before it had a seat", "send slots"});
}

TEST_CASE("Supervisor: a machine that stood still gives a replacement its time anew") {
  WaitingNode node;
  node.replace();
  CHECK(node.does(Tick{}, 62s).empty());
  CHECK(node.left() == 60s);
  CHECK(node.does(Tick{}, 60s).at(0) == kLate2);
}

TEST_CASE("Supervisor: between rounds a late replacement is no worker that begins") {
  WaitingNode node;
  node.replace();
  (void)node.does(Tick{}, 60s);
  rendezvous::StopRound stop{1, "another node is lost"};
  stop.keep = true;
  (void)node.does(Received{stop});
  (void)node.does(WorkerLeft{0, 1});
  CHECK(node.does(WorkerLeft{1, 1}).back() == "send join with 2 living");
  node.assign(2, 2);
  CHECK(node.supervisor().round() == 2);
  CHECK(node.does(WaitingNode::end(2, 0, SIGKILL, /*by_us=*/true)) == Lines{"send slots"});
}

TEST_CASE("Supervisor: workers that end with the run are not late") {
  WaitingNode node;
  node.replace();
  CHECK(node.does(Received{rendezvous::EndRun{}}) == Lines{"signal SIGTERM"});
  CHECK(node.left() == 30s);  // The grace, then SIGKILL.
  CHECK(node.does(Tick{}, 30s).back() == "signal SIGKILL");
}

TEST_CASE("Supervisor: late spares are named together") {
  WaitingNode node(/*spares=*/2);
  CHECK(node.left() == 60s);
  const Lines lines = node.does(Tick{}, 60s);
  REQUIRE(lines.size() == 2);
  CHECK(lines.at(0).find("say local ranks 3-4 of h have not opened their links to ddprun within "
                         "60 s and so have no seat: killing them;") == 0);
  CHECK(lines.at(1) == "kill local ranks 3 4");
}

}  // namespace
}  // namespace ddprun::agent
