#include "rendezvous/protocol/wire.h"

#include <catch2/catch.hpp>
#include <random>

namespace ddprun::rendezvous {
namespace {

NodeOffer full_offer() {
  NodeOffer offer;
  offer.host = "h\xff\"\n";  // Whatever a host calls itself, the message stays JSON.
  offer.address = "10.0.0.1";
  offer.store_port = 4711;
  offer.local_world_size = 8;
  offer.node_rank = 3;
  offer.hosts_endpoint = true;
  offer.networks = {{"eth0", "10.0.0.1", "10.0.0.0/24", 1000, true, true}};
  offer.link_address = "10.0.0.1";
  offer.seen_at = "10.9.0.1";
  offer.config.max_restarts = 5;
  offer.config.last_call = Milliseconds(1234);
  return offer;
}

std::vector<AgentMessage> agent_messages() {
  const WorkerDeath death{.rank = 3,
                          .local_rank = 1,
                          .pid = 99,
                          .host = "h",
                          .signal = 9,
                          .stopped_by_us = true,
                          .detail = "boom",
                          .fault = Fault::kOutOfMemory,
                          .evidence = "counters",
                          .blames = 2,
                          .was_failing = true,
                          .collective = 41,
                          .steps = 12};
  return {Hello{1, "job", "h.1"},
          Join{full_offer(), 4},
          Heartbeat{-1},
          Heartbeat{3, SyncIncrease{{{"steps", 1}, {"busbw", 9}}, {{5, {{"steps", 2}}}, {}}}},
          Finished{2},
          Failed{7, death},
          Stopped{7, {death, {}}, {death}},
          Leave{15, "interrupted"},
          Leave{10, "pre-empted", true},
          Join{full_offer(), 4, true},
          Hello{1, "job", "h.1", "0.1.0", true},
          Slots{9, 4, 2, 1, 3, 2}};
}

std::vector<DaemonMessage> daemon_messages() {
  Seat seat;
  seat.round = 4;
  seat.world_size = 16;
  seat.members = {"10.0.0.1", "10.0.0.2"};
  Verdict verdict{.kind = Verdict::Kind::kWorkerFailed,
                  .exit_code = 7,
                  .text = "t",
                  .first_cause = WorkerDeath{.rank = 1},
                  .victims = {WorkerDeath{.rank = 2}},
                  .advice = "a"};
  return {Waiting{.left = Milliseconds(5), .text = "a"},
          Assign{seat},
          StopRound{3, "why", true, 5, 1, 2},
          EndRun{verdict},
          Refuse{"no"},
          Alive{},
          Respawn{3, 1, 2},
          Relay{4, 29500},
          Alive{Milliseconds(250), true, true}};
}

// A field that neither side mentions would survive every comparison of texts.
TEST_CASE("Wire: what was added since the first release travels, too", "[wire]") {
  const auto stop = decode_daemon_message(encode(daemon_messages()[2])).value();
  CHECK(std::get<StopRound>(stop) == StopRound{3, "why", true, 5, 1, 2});
  const auto end = decode_daemon_message(encode(daemon_messages()[3])).value();
  CHECK(std::get<EndRun>(end).verdict.advice == "a");
  const auto alive = decode_daemon_message(encode(daemon_messages().back())).value();
  CHECK(std::get<Alive>(alive).replaceable);
  const auto stopped = decode_agent_message(encode(agent_messages()[6])).value();
  REQUIRE(std::get<Stopped>(stopped).successes.size() == 1);
  CHECK(std::get<Stopped>(stopped).successes[0] == std::get<Failed>(agent_messages()[5]).death);
}

TEST_CASE("Wire: what is said of workers that stay travels, and is not expected", "[wire]") {
  const auto slots = std::get<Slots>(decode_agent_message(encode(agent_messages().back())).value());
  CHECK(slots.serial == 9);
  CHECK(slots.round == 4);
  CHECK(slots.kept == 2);
  CHECK(slots.parked == 1);
  CHECK(slots.fallen == 3);
  CHECK(slots.respawned == 2);
  StopRound order{3, "why"};
  order.keep = order.planned = true;
  const auto stop = decode_daemon_message(encode(DaemonMessage(order))).value();
  CHECK(std::get<StopRound>(stop) == order);
  order.awaits_cause = true;
  order.lost_steps = std::int64_t{1} << 40;
  CHECK(std::get<StopRound>(decode_daemon_message(encode(order)).value()) == order);
  const auto alive = decode_daemon_message(encode(daemon_messages().back())).value();
  CHECK(std::get<Alive>(alive).keeps);
  const auto respawn = decode_daemon_message(encode(daemon_messages()[6])).value();
  CHECK(std::get<Respawn>(respawn).refused == 2);
  // From a daemon of before.
  const auto granted =
      decode_daemon_message(R"({"is":"respawn","granted":3,"restart_count":1})").value();
  CHECK(std::get<Respawn>(granted).refused == 0);
  const auto old_stop =
      decode_daemon_message(R"({"is":"stop_round","round":3,"reason":"why","final":false})");
  CHECK(std::get<StopRound>(old_stop.value()) == StopRound{3, "why"});
  const auto old_alive = decode_daemon_message(R"({"is":"alive","beat_ms":250})");
  CHECK_FALSE(std::get<Alive>(old_alive.value()).keeps);
  const auto why = decode_agent_message(R"({"is":"slots","serial":1,"round":0,"kept":-1.5})");
  CHECK(why.error().context == "decoding field 'kept' of 'slots'");
}

TEST_CASE("Wire: networks, and what is not reached, travel", "[wire]") {
  const auto join = std::get<Join>(decode_agent_message(encode(agent_messages()[1])).value());
  CHECK(join.offer.networks == full_offer().networks);
  CHECK(join.offer.link_address == "10.0.0.1");
  CHECK(join.offer.seen_at == "10.9.0.1");
  Seat seat;
  seat.master_host = "a";
  seat.neighbour = Neighbour{"b", "10.0.0.2", 4001, "10.9.0.1"};
  seat.data = DataPlace{"ib0", "10.1.0.1", "ib0,ib1"};
  seat.data_why = "data goes over ib0", seat.data_warns = true;
  const auto assign = decode_daemon_message(encode(DaemonMessage(Assign{seat}))).value();
  CHECK(std::get<Assign>(assign).seat == seat);
  const AgentMessage failed = Failed{1, {}, 0, {}, "a does not reach b"};
  const AgentMessage stopped = Stopped{1, {}, {}, "a does not reach b"};
  CHECK(std::get<Failed>(decode_agent_message(encode(failed)).value()).unreachable ==
        "a does not reach b");
  CHECK(std::get<Stopped>(decode_agent_message(encode(stopped)).value()).unreachable ==
        "a does not reach b");
}

TEST_CASE("Wire: hello and its answer name the release, older ones do not", "[wire]") {
  const Hello hello{kProtocolVersion, "r", "n", "1.2.3"};
  const auto greeted = decode_agent_message(encode(AgentMessage(hello))).value();
  CHECK(std::get<Hello>(greeted).release == "1.2.3");
  const auto old = decode_agent_message(R"({"is":"hello","version":1,"run_id":"r","node":"n"})");
  CHECK(std::get<Hello>(old.value()).release.empty());
  Alive alive;
  CHECK(encode(DaemonMessage(alive)).find("release") == std::string::npos);
  alive.release = "1.2.3";
  const auto answered = decode_daemon_message(encode(DaemonMessage(alive))).value();
  CHECK(std::get<Alive>(answered).release == "1.2.3");
  CHECK(release_text("1.2.3") == "ddprun 1.2.3");
  for (const std::string other : {std::string(), std::string("1\n2"), std::string(65, '1')}) {
    CHECK(release_text(other) == "an older ddprun");
  }
}

TEST_CASE("Wire: what is encoded decodes to the same", "[wire]") {
  for (const AgentMessage& message : agent_messages()) {
    const std::string body = encode(message);
    CAPTURE(body);
    const auto decoded = decode_agent_message(body);
    REQUIRE(decoded.has_value());
    CHECK(decoded->index() == message.index());
    CHECK(encode(*decoded) == body);
  }
  for (const DaemonMessage& message : daemon_messages()) {
    const std::string body = encode(message);
    CAPTURE(body);
    const auto decoded = decode_daemon_message(body);
    REQUIRE(decoded.has_value());
    CHECK(decoded->index() == message.index());
    CHECK(encode(*decoded) == body);
  }
}

TEST_CASE("Wire: a bad message names the field that is wrong", "[wire]") {
  const auto why = [](std::string_view body) {
    const auto decoded = decode_agent_message(body);
    return decoded ? std::string("accepted") : decoded.error().context;
  };
  CHECK(why("") == "decoding a message that is not a JSON object");
  CHECK(why("[1]") == "decoding a message that is not a JSON object");
  CHECK(why("{}") == "decoding field 'is' of a message");
  CHECK(why(R"({"is":"heartbeat"})") == "decoding field 'round' of 'heartbeat'");
  CHECK(why(R"({"is":"heartbeat","round":"1"})") == "decoding field 'round' of 'heartbeat'");
  CHECK(why(R"({"is":"heartbeat","round":1e99})") == "decoding field 'round' of 'heartbeat'");
  CHECK(why(R"({"is":"heartbeat","round":9999999999})") == "decoding field 'round' of 'heartbeat'");
  CHECK(why(R"({"is":"assign"})") == "decoding a message of unknown kind 'assign'");
  CHECK(why(std::string(100'000, '[')) == "decoding a message that is not a JSON object");
  CHECK(why(R"({"is":"leave","signal":1,"reason":")" + std::string(70'000, 'x') + "\"}") ==
        "decoding field 'reason' of 'leave'");
}

TEST_CASE("Wire: every counter that has a metric travels", "[wire]") {
  SyncIncrease sync{.late = {{.rank = 5}}};
  auto number = [next = std::uint64_t{100}](auto& counts) mutable {
    for (std::size_t i = 0; i < counts.kSize; ++i) {
      if (counts.kRows[i].is_exported()) counts.values[i] = ++next;
    }
  };
  number(sync.sums), number(sync.late[0].counts);
  const auto decoded = decode_agent_message(encode(AgentMessage(Heartbeat{3, sync}))).value();
  CHECK(std::get<Heartbeat>(decoded).sync == sync);
}

TEST_CASE("Wire: counters that an agent of another age lacks have counted nothing", "[wire]") {
  const auto decoded = decode_agent_message(
      R"({"is":"heartbeat","round":0,"sync":{"steps":2,"late":[{"rank":1}],"newer":7}})");
  CHECK(std::get<Heartbeat>(decoded.value()).sync == SyncIncrease{{{"steps", 2}}, {{1, {}}}});
}

TEST_CASE("Wire: counts that nobody can have counted are refused", "[wire]") {
  const std::string body = encode(AgentMessage(Heartbeat{3, SyncIncrease{{{"steps", 4711}}, {}}}));
  const auto why = [&](const std::string& steps) {
    std::string other = body;
    const auto decoded = decode_agent_message(other.replace(other.find("4711"), 4, steps));
    return decoded ? std::string("accepted") : decoded.error().context;
  };
  CHECK(why("4711") == "accepted");
  CHECK(why("9007199254740992") == "accepted");
  for (const char* steps : {"-1", "1.5", "9007199254740993", "1e300", "null", "\"1\""}) {
    CHECK(why(steps) == "decoding field 'steps' of 'heartbeat'");
  }
}

TEST_CASE("Wire: damaged messages are refused or read, never anything else", "[wire][fuzz]") {
  std::mt19937 random(7);
  for (const AgentMessage& message : agent_messages()) {
    const std::string body = encode(message);
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = body;
      for (unsigned n = random() % 4; n-- > 0;)
        damaged[random() % damaged.size()] = static_cast<char>(random());
      if (random() % 4 == 0) damaged.resize(random() % damaged.size());
      if (const auto decoded = decode_agent_message(damaged)) {
        CHECK_FALSE(encode(*decoded).empty());
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
