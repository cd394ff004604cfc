#include "rendezvous/run/status.h"

#include <catch2/catch.hpp>

#include "rendezvous/daemon/pages.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

NodeOffer offer_of(const std::string& host, int workers, int nodes) {
  NodeOffer offer;
  offer.host = host;
  offer.address = "10.0.0.1";
  offer.local_world_size = workers;
  offer.config.nnodes_min = offer.config.nnodes_max = nodes;
  offer.config.max_restarts = 3;
  return offer;
}

DaemonStatus full_status() {
  RunStatus run{.run_id = "job",
                .state = "ended",
                .round = 2,
                .restart_count = 1,
                .max_restarts = 3,
                .nnodes_min = 1,
                .nnodes_max = 4,
                .world_size = 8,
                .waiting_for = "nothing",
                .left = 1500ms,
                .verdict = VerdictStatus{"worker_failed", 7, "rank 1\nfailed"},
                .nodes = {}};
  run.nodes.push_back({"h.1", "h\xff\"\n", "::1", "seated", 1, 4, 4, 20ms, {}});
  run.nodes[0].ranks = {{.rank = 4, .at = "forward", .steps = 7, .steps_per_s = 2, .late_ms = 1}};
  run.step = 7;
  run.steps_per_s = 2.5;
  run.late = {
      {.rank = 4, .host = "h\xff", .late_ms = 9.5, .phase = "data", .late_s = 3, .steps = 6},
      {.rank = 5, .host = "h", .late_ms = 2}};
  run.events = {{.at_s = 1, .is_trouble = true, .text = "x"}};
  run.rounds = {{.round = 1, .world_size = 8, .from_s = 0, .to_s = 2, .cause = "y"},
                {.round = 2, .world_size = 8, .from_s = 2}};
  run.ledger = LedgerTotals{.places = 4, .wall = 8s};
  run.ledger->parts[TimePart::kForward] = 6s;
  run.ledger->parts[TimePart::kLost] = 2s;
  return {{run, RunStatus{}}};
}

TEST_CASE("Status: what is encoded decodes to the same", "[status]") {
  const std::string text = encode(full_status());
  const auto decoded = decode_status(text);
  REQUIRE(decoded.has_value());
  CHECK(encode(*decoded) == text);
  const auto indented = decode_status(encode_indented(full_status()));
  REQUIRE(indented.has_value());
  CHECK(encode(*indented) == text);
  CHECK(decoded->runs[0].left == 1500ms);
  CHECK(decoded->runs[0].verdict->text == "rank 1\nfailed");
  CHECK(decoded->runs[0].late->at(0).phase == "data");
  CHECK(decoded->runs[0].late->at(0).steps == 6);
  CHECK(decoded->runs[0].late->at(1).phase.empty());
  CHECK_FALSE(decoded->runs[1].late.has_value());
  CHECK_FALSE(decoded->runs[1].left.has_value());
  CHECK_FALSE(decoded->runs[1].verdict.has_value());
  // Pieces of it must be text themselves.
  CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
}

TEST_CASE("Status: what is not a status is refused, whatever it is", "[status]") {
  const std::string text = encode(full_status());
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    CHECK(decode_status(std::string_view(text).substr(0, cut)).has_error());
  }
  for (const char* bad :
       {"{}", "[]", "3", R"({"runs":3})", R"({"runs":[3]})", R"({"runs":[{}]})"}) {
    CHECK(decode_status(bad).has_error());
  }
  std::string wide = text;
  wide.replace(wide.find("\"round\":2"), 9, "\"round\":99999999999");
  CHECK(decode_status(wide).has_error());
}

TEST_CASE("Status: a number with a fraction, or beyond all integers, is refused", "[status]") {
  const std::string text = encode(full_status());
  for (const std::string field : {"\"round\":2", "\"left_ms\":1500"}) {
    for (const char* number : {"2.5", "1e300", "-1e300"}) {
      std::string spoilt = text;
      const std::size_t at = spoilt.find(field);
      REQUIRE(at != std::string::npos);
      spoilt.replace(at, field.size(), field.substr(0, field.find(':') + 1) + number);
      CHECK(decode_status(spoilt).has_error());
    }
  }
}

TEST_CASE("Status: a run says who is there, what it waits for and how long yet", "[status]") {
  Run run;
  CHECK(run.status(kStart).state == "gathering");
  (void)run.step({"b", Join{offer_of("hb", 2, 2), -1}}, kStart);
  const RunStatus gathering = run.status(kStart + 40ms);
  CHECK(gathering.state == "gathering");
  CHECK(gathering.waiting_for == run.waiting_for(kStart + 40ms));
  CHECK(gathering.left == 600'000ms - 40ms);
  CHECK(gathering.nnodes_max == 2);
  CHECK(gathering.max_restarts == 3);
  CHECK(gathering.world_size == 0);
  REQUIRE(gathering.nodes.size() == 1);
  CHECK(gathering.nodes[0].phase == "ready");
  CHECK(gathering.nodes[0].group_rank == -1);
  CHECK(gathering.nodes[0].silent == 40ms);

  (void)run.step({"a", Join{offer_of("ha", 3, 2), -1}}, kStart + 50ms);
  (void)run.step({"c", Join{offer_of("hc", 1, 2), -1}}, kStart + 60ms);
  const RunStatus running = run.status(kStart + 60ms);
  CHECK(running.state == "running");
  CHECK(running.world_size == 5);
  REQUIRE(running.nodes.size() == 3);
  CHECK(running.nodes[0].id == "b");  // By group rank, spares last.
  CHECK(running.nodes[1].id == "a");
  CHECK(running.nodes[1].group_rank == 1);
  CHECK(running.nodes[1].base_rank == 2);
  CHECK(running.nodes[2].phase == "ready");

  (void)run.step({"", Cancel{15, "enough"}}, kStart + 70ms);
  const RunStatus closing = run.status(kStart + 70ms);
  CHECK(closing.state == "closing");
  CHECK(closing.left == 40'000ms);
  REQUIRE(closing.verdict.has_value());
  CHECK(closing.verdict->kind == "interrupted");
  CHECK(closing.verdict->exit_code == 143);
}

struct Reader {
  std::string wrong;
  Pages pages{.complaint = [this] { return wrong; },
              .status = [] { return full_status(); },
              .metrics = [] { return "a 1\n"; }};

  HttpReply get(std::string_view target) { return pages.answer("GET", target); }
};

TEST_CASE("Pages: each says what it holds, others say what there is", "[pages]") {
  Reader reader;
  CHECK(reader.get("/healthz").status == 200);
  CHECK(reader.get("/healthz").body == "ok\n");
  reader.wrong = "the loop is late";
  CHECK(reader.get("/healthz").status == 503);
  CHECK(reader.get("/healthz").body == "the loop is late\n");
  CHECK(reader.get("/metrics").body == "a 1\n");
  CHECK(reader.get("/metrics").content_type.starts_with("text/plain; version=0.0.4"));
  CHECK(reader.get("/").content_type.starts_with("text/html"));
  CHECK(reader.get("/nothing").status == 404);
  CHECK(reader.get("/Status").status == 404);
  CHECK(reader.get("status").status == 400);
  CHECK(reader.pages.answer("POST", "/status").status == 405);
}

TEST_CASE("Pages: status shows all runs or the one that is asked for", "[pages]") {
  Reader reader;
  const auto runs = [&](std::string_view target) {
    const HttpReply reply = reader.get(target);
    CHECK(reply.status == 200);
    CHECK(reply.content_type == "application/json");
    return decode_status(reply.body).value().runs.size();
  };
  CHECK(runs("/status") == 2);
  CHECK(runs("/status?run=job") == 1);
  CHECK(runs("/status?x&run=%6aob&") == 1);
  CHECK(reader.get("/status?run=nix").status == 404);
  CHECK(reader.get("/status?run=%6").status == 400);
}

TEST_CASE("HTTP target: percent signs and pluses are undone, bad ones are refused", "[pages]") {
  const auto value = [](std::string_view target) {
    const auto parsed = parse_target(target);
    return parsed ? parsed->query.at("a") : "refused";
  };
  CHECK(value("/p?a=b%20c+d") == "b c d");
  CHECK(value("/p?a=1&a=2") == "2");
  CHECK(value("/p?a") == "");
  CHECK(value("/p?a=%00") == std::string(1, '\0'));
  CHECK(value("/p?a=%e4%C3") == "\xe4\xc3");
  for (const char* bad : {"/p?a=%", "/p?a=%4", "/p?a=%zz", "/p?a=%-1", "", "x", "http://h/p"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_target(bad).has_value());
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
