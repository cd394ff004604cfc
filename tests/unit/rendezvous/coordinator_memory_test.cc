#include <catch2/catch.hpp>

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

// A node joins; the daemon goes on after the next boot; the node has gone with the first one.
std::string journal_of_two_boots() {
  std::string disk;
  Coordinator first;
  TimePoint now{300h};
  first.replay({}, now, "boot 1");
  NodeOffer offer;
  offer.host = "a";
  offer.config.nnodes_min = offer.config.nnodes_max = 2;
  (void)first.on_message(1, encode(AgentMessage(Hello{kProtocolVersion, "x", "a"})), now);
  (void)first.on_message(1, encode(AgentMessage(Join{offer, -1})), now);
  disk += first.take_records();

  Coordinator second;
  now = TimePoint(1h);
  second.replay(decode_journal(disk), now, "boot 2");
  for (const TimePoint end = now + 10min; now < end; now += 500ms) (void)second.on_tick(now);
  return disk + second.take_records();
}

TEST_CASE("Coordinator: a run that is forgotten as a journal is read wants no tick",
          "[coordinator]") {
  const Journal journal = decode_journal(journal_of_two_boots());
  Coordinator next;
  const TimePoint now{2h};
  next.replay(journal, now, "boot 2");
  next.check_invariants();
  (void)next.on_tick(now + 24h);
  next.check_invariants();
  CHECK(next.runs().empty());
}

}  // namespace
}  // namespace ddprun::rendezvous
