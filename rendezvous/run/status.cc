#include "rendezvous/run/status.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

// Far from where durations overflow.
constexpr std::int64_t kMillisecondsMax = 1'000'000'000'000;

// The names of the fields stand in these pairs, and in docs/operations.md.
json to_json(const NodeStatus& node) {
  return {{"id", node.id},
          {"host", node.host},
          {"address", node.address},
          {"phase", node.phase},
          {"group_rank", node.group_rank},
          {"base_rank", node.base_rank},
          {"local_world_size", node.local_world_size},
          {"silent_ms", node.silent.count()}};
}

json to_json(const RoundStatus& round) {
  json object = {{"round", round.round},
                 {"world_size", round.world_size},
                 {"from_s", round.from_s},
                 {"cause", round.cause}};
  object["to_s"] = round.to_s ? json(*round.to_s) : json();
  return object;
}

// Shares of the time of all ranks in the run.
void add_ledger(json& object, const LedgerTotals& ledger) {
  object["elapsed_s"] = std::chrono::duration<double>(ledger.wall).count();
  object["goodput"] = ledger.goodput();
  object["parts"] = json::object();
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    const auto part = static_cast<TimePart>(i);
    const bool in_run = part != TimePart::kSpare && part != TimePart::kGone;
    if (in_run && ledger.share(part) > 0) object["parts"][name_of(part)] = ledger.share(part);
  }
}

json to_json(const RunStatus& run) {
  json object = {{"run_id", run.run_id},
                 {"state", run.state},
                 {"round", run.round},
                 {"restart_count", run.restart_count},
                 {"max_restarts", run.max_restarts},
                 {"nnodes_min", run.nnodes_min},
                 {"nnodes_max", run.nnodes_max},
                 {"world_size", run.world_size},
                 {"waiting_for", run.waiting_for},
                 {"nodes", json::array()}};
  if (run.left) object["left_ms"] = run.left->count();
  if (run.verdict) {
    object["verdict"] = {{"kind", run.verdict->kind},
                         {"exit_code", run.verdict->exit_code},
                         {"text", run.verdict->text}};
  }
  if (run.ledger) add_ledger(object, *run.ledger);
  for (const RoundStatus& round : run.rounds) object["rounds"].push_back(to_json(round));
  for (const NodeStatus& node : run.nodes) object["nodes"].push_back(to_json(node));
  return object;
}

json to_json(const DaemonStatus& status) {
  json runs = json::array();
  for (const RunStatus& run : status.runs) runs.push_back(to_json(run));
  return {{"runs", std::move(runs)}};
}

std::string text_of(const json& object, int indent) {
  // Host names and last words may hold any bytes; JSON text may not.
  return object.dump(indent, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

// at() throws where a field is missing, get<>() where it is of another type; numbers are looked at
// here, since get<int>() would cut them off.
int whole(const json& object, const char* name) {
  const json& value = object.at(name);
  const auto wide = value.get<std::int64_t>();
  if (!value.is_number_integer() || wide != static_cast<int>(wide)) {
    throw json::other_error::create(501, std::string(name) + " is no whole number", &value);
  }
  return static_cast<int>(wide);
}

Milliseconds duration(const json& object, const char* name) {
  const json& value = object.at(name);
  const auto count = value.get<std::int64_t>();
  if (!value.is_number_integer() || count < 0 || count > kMillisecondsMax) {
    throw json::other_error::create(501, std::string(name) + " is no duration", &value);
  }
  return Milliseconds(count);
}

std::string words(const json& object, const char* name) {
  return object.at(name).get<std::string>();
}

NodeStatus node_from(const json& object) {
  return {.id = words(object, "id"),
          .host = words(object, "host"),
          .address = words(object, "address"),
          .phase = words(object, "phase"),
          .group_rank = whole(object, "group_rank"),
          .base_rank = whole(object, "base_rank"),
          .local_world_size = whole(object, "local_world_size"),
          .silent = duration(object, "silent_ms")};
}

RunStatus run_from(const json& object) {
  RunStatus run{.run_id = words(object, "run_id"),
                .state = words(object, "state"),
                .round = whole(object, "round"),
                .restart_count = whole(object, "restart_count"),
                .max_restarts = whole(object, "max_restarts"),
                .nnodes_min = whole(object, "nnodes_min"),
                .nnodes_max = whole(object, "nnodes_max"),
                .world_size = whole(object, "world_size"),
                .waiting_for = words(object, "waiting_for"),
                .left = {},
                .verdict = {},
                .ledger = {},
                .rounds = {},
                .nodes = {}};
  if (object.contains("left_ms")) run.left = duration(object, "left_ms");
  if (object.contains("verdict")) {
    const json& verdict = object.at("verdict");
    run.verdict = {words(verdict, "kind"), whole(verdict, "exit_code"), words(verdict, "text")};
  }
  for (const json& node : object.at("nodes").get_ref<const json::array_t&>()) {
    run.nodes.push_back(node_from(node));
  }
  return run;
}

}  // namespace

const char* kind_name(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::kSuccess: return "success";
    case Verdict::Kind::kWorkerFailed: return "worker_failed";
    case Verdict::Kind::kNodeLost: return "node_lost";
    case Verdict::Kind::kTimedOut: return "timed_out";
    case Verdict::Kind::kInterrupted: return "interrupted";
    case Verdict::Kind::kAgentKilled: return "agent_killed";
  }
  return "?";
}

std::string encode(const DaemonStatus& status) { return text_of(to_json(status), -1); }
std::string encode_indented(const DaemonStatus& status) {
  return text_of(to_json(status), 2) + "\n";
}

Result<DaemonStatus> decode_status(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  DaemonStatus status;
  try {
    for (const json& run : object.at("runs").get_ref<const json::array_t&>()) {
      status.runs.push_back(run_from(run));
    }
  } catch (const json::exception& bad) {
    return Failure{Errc::kBadMessage, std::string("decoding a status: ") + bad.what()};
  }
  return status;
}

}  // namespace ddprun::rendezvous
