#include "common/worker_link.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/agent/worker_link_fuzz.h"

namespace ddprun::worker_link {
namespace {

constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();

std::vector<WorkerMessage> worker_messages() {
  return {Ready{}, Ready{.version = 9}, LeftRound{.round = 3, .step = kMany},
          Resumed{.round = 4, .step = 1, .repeated = 2, .lost_us = 83'000}};
}

std::vector<AgentMessage> agent_messages() {
  return {Seated{.round = 1,
                 .restart_count = 2,
                 .rank = 3,
                 .world_size = 8,
                 .local_rank = 1,
                 .local_world_size = 2,
                 .group_rank = 1,
                 .group_world_size = 4,
                 .master_address = "fe80::1%eth0",
                 .master_port = 29'500},
          Fence{.round = 1, .lost_rank = -1, .why = "a \"quoted\"\nreason"},
          Change{.round = 1, .why = "growing to 8 workers"}, Refused{.why = "versions differ"}};
}

// The field that is reported as bad.
std::string why_bad(const nlohmann::json& object, bool from_agent) {
  if (from_agent) {
    const auto message = decode_agent_message(object.dump());
    return message ? "" : message.error().context;
  }
  const auto message = decode_worker_message(object.dump());
  return message ? "" : message.error().context;
}

void check_each_field(const std::string& text, bool from_agent) {
  const auto good = nlohmann::json::parse(text);
  for (const auto& [name, value] : good.items()) {
    CAPTURE(text, name);
    const std::string of =
        name == "type" ? "a message" : "'" + good.at("type").get<std::string>() + "'";
    const std::string blamed = "decoding field '" + name + "' of " + of;
    auto without = good;
    without.erase(name);
    CHECK(why_bad(without, from_agent) == blamed);
    std::vector<nlohmann::json> wrong{nullptr, true, 1.5, nlohmann::json::array(),
                                      nlohmann::json::object()};
    if (value.is_string()) {
      wrong.insert(wrong.end(), {1, std::string(kTextBytesMax + 1, 'x')});
    } else {
      wrong.insert(wrong.end(), {"1", -2, std::numeric_limits<std::uint64_t>::max()});
      if (name != "step" && name != "repeated" && name != "lost_us") wrong.emplace_back(1LL << 31);
    }
    for (const auto& one : wrong) {
      auto bad = good;
      bad[name] = one;
      CAPTURE(one.dump());
      const bool strange = name == "type" && one.is_string();
      if (strange) {
        CHECK(why_bad(bad, from_agent).starts_with("decoding a message of unknown kind '"));
      } else {
        CHECK(why_bad(bad, from_agent) == blamed);
      }
    }
  }
}

TEST_CASE("Worker link: a seat may have what the round before has left to be known") {
  const Seated seated{.master_address = "a",
                      .skip = "step 3, shard 1",
                      .lost_work = {.work = "step 3, shard 2: samples 5",
                                    .who = "rank 2 on node7",
                                    .how = "was killed by signal 11 (SIGSEGV)"}};
  CHECK(decode_agent_message(encode(AgentMessage(seated))).value() == AgentMessage(seated));
}

TEST_CASE("Worker link: every message comes back as it was sent", "[worker_link]") {
  for (const WorkerMessage& message : worker_messages()) {
    CHECK(decode_worker_message(encode(message)).value() == message);
  }
  for (const AgentMessage& message : agent_messages()) {
    CHECK(decode_agent_message(encode(message)).value() == message);
  }
}

TEST_CASE("Worker link: the bytes are those that other programs send", "[worker_link]") {
  CHECK(encode(WorkerMessage(Ready{})) == R"({"type":"ready","version":1})");
  CHECK(encode(WorkerMessage(LeftRound{.round = 1, .step = 2})) ==
        R"({"round":1,"step":2,"type":"left"})");
  CHECK(decode_worker_message(R"( {"version": 1, "type": "ready", "more": [1]} )").value() ==
        WorkerMessage(Ready{}));
}

TEST_CASE("Worker link: each missing or wrong field is named", "[worker_link]") {
  for (const WorkerMessage& message : worker_messages()) check_each_field(encode(message), false);
  for (const AgentMessage& message : agent_messages()) check_each_field(encode(message), true);
}

TEST_CASE("Worker link: neither side takes the other's messages", "[worker_link]") {
  for (const WorkerMessage& message : worker_messages()) {
    CHECK(decode_agent_message(encode(message)).has_error());
  }
  for (const AgentMessage& message : agent_messages()) {
    CHECK(decode_worker_message(encode(message)).has_error());
  }
}

TEST_CASE("Worker link: what is not a message of one object is refused", "[worker_link]") {
  for (const char* text : {"", " ", "null", "1", "[]", "\"ready\"", "{", "{}", "{\"type\":1}",
                           "{\"type\":\"ready\",\"version\":1}{", "\xff\xfe", "{\"type\":\"\"}"}) {
    CAPTURE(text);
    CHECK(decode_worker_message(text).has_error());
    CHECK(decode_agent_message(text).has_error());
  }
  std::string deep = R"({"type":"ready","version":1,"more":)";
  for (int i = 0; i < 3000; ++i) deep += '[';
  CHECK(decode_worker_message(deep).has_error());
}

TEST_CASE("Worker link: texts are cut when sent, messages are as long as the limit at most",
          "[worker_link]") {
  const Fence fence{.round = 1, .lost_rank = 2, .why = std::string(100'000, 'x')};
  const std::string cut = encode(AgentMessage(fence));
  CHECK(cut.size() < kMessageBytesMax);
  CHECK(std::get<Fence>(decode_agent_message(cut).value()).why.size() == kTextBytesMax);
  std::string padded = encode(WorkerMessage(Ready{}));
  padded.resize(kMessageBytesMax, ' ');
  CHECK(decode_worker_message(padded).has_value());
  padded += ' ';
  CHECK(decode_worker_message(padded).error().context ==
        "decoding a message that is too long: 8193 bytes");
}

TEST_CASE("Worker link: bytes that a reason must not have do not reach the other side",
          "[worker_link]") {
  std::string why = "caf\xe9 ";
  why += std::string(1, '\0');
  const auto message = decode_agent_message(encode(AgentMessage(Change{.round = 1, .why = why})));
  REQUIRE(message.has_value());
  CHECK(std::get<Change>(*message).why == std::string("caf \0", 5));
}

TEST_CASE("Worker link: random and damaged bytes are read without a fault", "[worker_link][fuzz]") {
  std::minstd_rand random(42);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  std::vector<std::string> corpus;
  for (const auto& message : worker_messages()) corpus.push_back(encode(message));
  for (const auto& message : agent_messages()) corpus.push_back(encode(message));
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = corpus[below(corpus.size())];
    for (int k = 0; k < 3; ++k) bytes[below(bytes.size())] = static_cast<char>(below(256));
    if (i % 4 == 0) bytes.resize(below(bytes.size() + 1));
    fuzz::fuzz_worker_link(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
}  // namespace ddprun::worker_link
