#include "rendezvous/run/status.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

// The names of the fields stand in these pairs, and in docs/operations.md.
json to_json(const RankStatus& rank) {
  return {{"rank", rank.rank},       {"local_rank", rank.local_rank},
          {"at", rank.at},           {"steps", rank.steps},
          {"late_ms", rank.late_ms}, {"steps_per_s", rank.steps_per_s},
          {"cpu", rank.cpu},         {"resident_bytes", rank.resident}};
}

json to_json(const LateStatus& late) {
  json object = {{"rank", late.rank},
                 {"host", late.host},
                 {"late_ms", late.late_ms},
                 {"late_s", late.late_s},
                 {"late_steps", late.steps}};
  if (!late.phase.empty()) object["phase"] = late.phase;
  return object;
}

json to_json(const RunEventText& event) {
  return {
      {"at_s", event.at_s}, {"level", event.is_trouble ? "warning" : "info"}, {"text", event.text}};
}

json to_json(const NodeStatus& node) {
  json object = {{"id", node.id},
                 {"host", node.host},
                 {"address", node.address},
                 {"phase", node.phase},
                 {"group_rank", node.group_rank},
                 {"base_rank", node.base_rank},
                 {"local_world_size", node.local_world_size},
                 {"silent_ms", node.silent.count()}};
  for (const RankStatus& rank : node.ranks) object["ranks"].push_back(to_json(rank));
  return object;
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
  object["goodput"] = ledger.knows_goodput() ? json(ledger.goodput()) : json();
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
  if (run.step) object["step"] = *run.step, object["steps_per_s"] = run.steps_per_s;
  if (run.late) {
    object["late"] = json::array();
    for (const LateStatus& late : *run.late) object["late"].push_back(to_json(late));
  }
  if (run.steps_left > 0) object["steps_left"] = run.steps_left;
  if (const auto left = seconds_left(run)) object["eta_s"] = *left;
  for (const RoundStatus& round : run.rounds) object["rounds"].push_back(to_json(round));
  for (const RunEventText& event : run.events) object["events"].push_back(to_json(event));
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

bool is_late(double late_ms, double steps_per_s) {
  constexpr double kLateMin = 1.0;     // Milliseconds a step: less is noise.
  constexpr double kLateShare = 0.01;  // Of a step: the same.
  const double step_ms = steps_per_s > 0 ? 1000 / steps_per_s : 0;
  return late_ms >= std::max(kLateMin, kLateShare * step_ms);
}

std::optional<double> seconds_left(const RunStatus& run) {
  const bool known = run.state == "running" && run.steps_left > 0 && run.steps_per_s > 0;
  if (!known) return std::nullopt;
  return static_cast<double>(run.steps_left) / run.steps_per_s;
}

std::string encode(const DaemonStatus& status) { return text_of(to_json(status), -1); }
std::string encode_indented(const DaemonStatus& status) {
  return text_of(to_json(status), 2) + "\n";
}

}  // namespace ddprun::rendezvous
