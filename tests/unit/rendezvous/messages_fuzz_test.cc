// The body of messages_fuzz on real messages with seeded damage, so that every build runs it.

#include "tests/fuzz/messages_fuzz.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "rendezvous/journal/journal.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/protocol/wire_request.h"
#include "rendezvous/run/status.h"
#include "worker_sdk/join/membership.h"

namespace ddprun {
namespace {

using namespace rendezvous;

// The first byte is the parser that understands the rest.
std::vector<std::string> real_messages() {
  NodeOffer offer;
  offer.host = "node1";
  offer.address = "10.0.0.1";
  const WorkerDeath death{.rank = 3, .local_rank = 1, .pid = 4711, .host = "n", .exit_code = 7};
  Seat seat;
  seat.master_address = "10.0.0.1";
  seat.members = {"10.0.0.1", "fe80::1"};
  const Verdict verdict{Verdict::Kind::kWorkerFailed, 7, "rank 3 failed", death, {death}};
  std::vector<std::string> all;
  for (const AgentMessage& m : std::vector<AgentMessage>{
           Hello{kProtocolVersion, "run", "node"}, Join{offer, 4}, Heartbeat{2},
           Heartbeat{2, SyncIncrease{{{"steps", 32}}, {{3, {{"steps", 1}}}}}}, Finished{1},
           Failed{1, death}, Stopped{1, {death, death}}, Leave{15, "told to"}}) {
    all.push_back('\0' + encode(m));
  }
  for (const DaemonMessage& m : std::vector<DaemonMessage>{
           Waiting{Milliseconds(5000), "a, b"}, Assign{seat}, StopRound{1, "rank 3 failed", true},
           EndRun{verdict}, Refuse{"another config"}, Relay{3, 29500}}) {
    all.push_back('\1' + encode(m));
  }
  Run live;
  (void)live.step({"node", Join{offer, -1}}, TimePoint{});
  all.push_back('\2' + journal_header() + encode_record(ClockChange{"boot", TimePoint{}}) +
                encode_record(Record{"run", TimePoint{}, {"node", Join{offer, -1}}}) +
                encode_record(Record{"run", TimePoint{}, {"node", Finished{0}}}) +
                encode_record(RunSnapshot{"run", TimePoint{}, live}));
  all.push_back('\11' + live.snapshot(TimePoint{}));
  const worker_sdk::Introduction hello{"node1", "domain", "network", 12, "10.0.0.1", "auto"};
  all.push_back('\3' + worker_sdk::encode(hello));
  all.push_back('\4' + worker_sdk::encode(worker_sdk::decide({hello, hello})));
  all.push_back('\5' + encode(Command{.verb = Command::Verb::kDrain, .node = "n", .reason = "r"}));
  all.push_back('\6' + encode(Answer{.text = "text", .more = true}));
  RunStatus run{.run_id = "run", .state = "ended", .left = Milliseconds(5)};
  run.verdict = VerdictStatus{"success", 0, "done"};
  run.nodes.push_back({.id = "n", .host = "h", .phase = "seated"});
  all.push_back('\7' + encode(DaemonStatus{{run}}));
  all.push_back("\x08/status?run=a%20b&x=+%41");
  for (const RelayRequest& m :
       std::vector<RelayRequest>{Dial{.run_id = "run", .node = "n", .port = 29500},
                                 Meet{.run_id = "run", .node = "n", .stream = 7, .error = "no"}}) {
    all.push_back('\12' + encode(m));
  }
  all.push_back('\13' + encode(Joined{"why not", true}));
  all.push_back("\14open nonce ::1 29500,29501");
  all.push_back("\14dial nonce host.1 29500");
  return all;
}

TEST_CASE("Messages: damaged ones break no promise", "[fuzz]") {
  std::mt19937 random(11);
  const auto feed = [](const std::string& text) {
    fuzz::fuzz_messages(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  for (const std::string& message : real_messages()) {
    feed(message);
    for (int round = 0; round < 2'000; ++round) {
      std::string damaged = message;
      for (unsigned n = 1 + random() % 3; n > 0; --n) {
        const std::size_t at = 1 + random() % (damaged.size() - 1);
        switch (random() % 4) {
          case 0: damaged[at] = static_cast<char>(random()); break;
          case 1: damaged[at] = "0123456789-\"{}[],:e"[random() % 19]; break;
          case 2: damaged.insert(at, damaged.substr(at, random() % 8)); break;
          default: damaged.erase(at, random() % 4); break;
        }
        if (damaged.size() < 2) damaged = message;
      }
      feed(damaged);
    }
  }
  SUCCEED("nothing aborted");
}

}  // namespace
}  // namespace ddprun
