// The Coordinator and its runs keep their invariants whatever they receive, in any order.

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

// Eight links on which anything may be sent, of two runs with four nodes each.
class Crowd {
 public:
  explicit Crowd(unsigned seed) : random_(seed) {}

  void anything() {
    now_ += 1ms * (chance(95) ? random_() % 100 : random_() % 20'000);
    const LinkId link = 1 + random_() % 8;
    if (chance(1)) return does(coordinator_.on_standstill(Milliseconds(random_() % 9000), now_));
    if (chance(1) && chance(10)) return does(coordinator_.on_shutdown(15, now_));
    if (chance(1) && chance(30)) return does(coordinator_.on_recovered(now_));
    if (chance(3)) return does(coordinator_.on_closed(link, now_, chance(30)));
    if (chance(4)) return does(coordinator_.on_message(9, encode(command()), now_));
    if (chance(9)) return does(coordinator_.on_reach(link, {now_, 1ms * (random_() % 90)}, now_));
    if (chance(20)) return does(coordinator_.on_tick(now_));
    does(coordinator_.on_message(link, encode(any_message()), now_));
  }
  const Counters& counters() const { return coordinator_.counters(); }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  std::string run_id() { return chance(50) ? "x" : "y"; }
  NodeId node() { return std::string(1, static_cast<char>('a' + random_() % 4)); }

  Join join() {
    Join join;
    join.after_round = round();
    join.living = chance(40);
    join.beginning = chance(20) ? 1 : 0;
    join.prepares = chance(50);
    join.offer.host = node();
    join.offer.local_world_size = chance(97) ? 2 : 0;
    join.offer.node_rank = static_cast<int>(random_() % 9) - 6;
    join.offer.hosts_endpoint = chance(20);
    join.offer.config.nnodes_max = chance(90) ? 3 : 2;
    join.offer.config.max_restarts = 2;
    join.offer.config.last_call = 1s;
    return join;
  }

  WorkerDeath death() {
    return {.rank = static_cast<int>(random_() % 8), .host = node(), .exit_code = 7};
  }

  Command command() {
    const bool cancels = chance(10), resizes = chance(40);
    return {.verb = cancels   ? Command::Verb::kCancel
                    : resizes ? Command::Verb::kResize
                              : Command::Verb::kDrain,
            .run_id = run_id(),
            .node = node(),
            .reason = "it may",
            .nodes = 1 + static_cast<int>(random_() % 3)};
  }

  // Often the right one.
  int round() {
    const auto run = coordinator_.runs().find("x");
    const int now = run == coordinator_.runs().end() ? 0 : run->second.round();
    return chance(60) ? now : now + static_cast<int>(random_() % 4) - 2;
  }

  // Often that all workers of a node can be kept.
  Slots slots() {
    const auto few = [&] { return static_cast<int>(random_() % 3); };
    return {.serial = ++serial_ - few(),
            .round = round(),
            .kept = chance(80) ? 2 : few(),
            .parked = few(),
            .fallen = few(),
            .respawned = chance(80) ? 0 : few(),
            .spares = few()};
  }

  AgentMessage any_message() {
    switch (random_() % 16) {
      case 0:
      case 1: return Hello{kProtocolVersion, run_id(), node()};
      case 2:
      case 3:
      case 4: return join();
      case 5: return Finished{round()};
      case 6: return Failed{round(), death()};
      case 7:
      case 8: return Stopped{round(), {death()}, {}};
      case 9: return Leave{chance(30) ? 15 : 0, "told to", chance(50)};
      case 10: return Away{};
      case 11:
      case 12:
      case 13: return slots();
      default: return Heartbeat{round()};
    }
  }

  void does(const std::vector<LinkAction>&) {
    coordinator_.check_invariants();
    (void)coordinator_.take_records();
    (void)coordinator_.take_news();
  }

  std::mt19937 random_;
  Coordinator coordinator_;
  TimePoint now_{1h};
  int serial_ = 0;
};

TEST_CASE("Coordinator: whatever is said, and whenever, its invariants hold", "[coordinator]") {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Crowd crowd(seed);
    for (int i = 0; i < 2000; ++i) crowd.anything();
    CHECK(crowd.counters().rounds_sealed > 0);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
