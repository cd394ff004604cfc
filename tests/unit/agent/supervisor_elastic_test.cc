// Workers that keep their process: what one agent does when a round ends that they survive.

#include <catch2/catch.hpp>
#include <csignal>

#include "agent/node/supervisor.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// A node of workers that have said Ready, in round 0, with a daemon that keeps workers.
class ElasticNode {
 public:
  explicit ElasticNode(int workers)
      : supervisor_({.host = "h", .local_world_size = workers}, now_), workers_(workers) {
    does(LinkUp{});
    alive();
    assign(0, workers);
    for (int i = 0; i < workers; ++i) {
      CHECK(ready(i) == (i + 1 < workers ? Lines{} : Lines{"send slots"}));
    }
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
  Lines alive() { return does(Heard{rendezvous::Alive{.keeps = true}}); }
  Lines ready(int local_rank) { return does(WorkerReady{local_rank}); }
  Lines left(int local_rank, int round) { return does(WorkerLeft{local_rank, round}); }
  Lines assign(int round, int workers) {
    rendezvous::Seat seat;
    seat.round = round;
    seat.workers = workers;
    return does(Heard{rendezvous::Assign{seat}});
  }
  Lines stop(int round, bool keep, bool planned = false, int restart = 0) {
    rendezvous::StopRound stop{round, "so it is"};
    stop.restart = restart;
    stop.max_restarts = 3;
    stop.keep = keep;
    stop.planned = planned;
    return does(Heard{stop});
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
  CHECK(node.left(2, 0).empty());  // The daemon has not said how to go on.
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
  CHECK(node.stop(1, true, true).empty());  // Heard twice.
  CHECK(node.left(2, 1).empty());
  CHECK(node.left(0, 1) == Lines{"send stopped", "send join with 3 living"});
  CHECK(node.assign(2, 3) == Lines{"seat round=2 local ranks 0 1 2"});
}

}  // namespace
}  // namespace ddprun::agent
