#include "rendezvous/run/status.h"

#include <algorithm>
#include <cstdint>
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
  if (node.memory) {
    object["memory"] = {{"used_bytes", node.memory->used}, {"size_bytes", node.memory->size}};
    const auto& behind = node.memory->behind;
    if (behind) object["memory"]["behind_ms"] = behind->count();
  }
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
  object["goodput"] = ledger.has_goodput() ? json(ledger.goodput()) : json();
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

// The part of status.h that reads what another process has sent.

namespace {

using nlohmann::json;

// Far from where durations overflow.
constexpr std::int64_t kMillisecondsMax = 1'000'000'000'000;

// at() throws if a field is missing, get<>() if it is of another type; numbers are checked here,
// since get<int>() would cut them off.
int whole(const json& object, const char* name) {
  const json& value = object.at(name);
  // First the type: a number with a fraction, or beyond 64 bits, must not be made an integer.
  const auto wide = value.is_number_integer() ? value.get<std::int64_t>() : kMillisecondsMax;
  if (wide != static_cast<int>(wide)) {
    throw json::other_error::create(501, std::string(name) + " is no whole number", &value);
  }
  return static_cast<int>(wide);
}

Milliseconds duration(const json& object, const char* name) {
  const json& value = object.at(name);
  const auto count = value.is_number_integer() ? value.get<std::int64_t>() : -1;
  if (count < 0 || count > kMillisecondsMax) {
    throw json::other_error::create(501, std::string(name) + " is no duration", &value);
  }
  return Milliseconds(count);
}

std::string words(const json& object, const char* name) {
  return object.at(name).get<std::string>();
}

std::uint64_t count(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_number_unsigned()) {
    throw json::other_error::create(501, std::string(name) + " is no count", &value);
  }
  return value.get<std::uint64_t>();
}

double number(const json& object, const char* name) { return object.at(name).get<double>(); }

const json::array_t& list(const json& object, const char* name) {
  static const json::array_t kNone;
  const auto it = object.find(name);
  return it == object.end() ? kNone : it->get_ref<const json::array_t&>();
}

RankStatus rank_from(const json& object) {
  return {.rank = whole(object, "rank"),
          .local_rank = whole(object, "local_rank"),
          .at = words(object, "at"),
          .steps = count(object, "steps"),
          .steps_per_s = number(object, "steps_per_s"),
          .late_ms = number(object, "late_ms"),
          .cpu = object.contains("cpu") ? number(object, "cpu") : 0,
          .resident = object.contains("resident_bytes") ? count(object, "resident_bytes") : 0};
}

LateStatus late_from(const json& object) {
  return {.rank = whole(object, "rank"),
          .host = words(object, "host"),
          .late_ms = number(object, "late_ms"),
          .phase = object.contains("phase") ? words(object, "phase") : "",
          .late_s = number(object, "late_s"),
          .steps = count(object, "late_steps")};
}

RoundStatus round_from(const json& object) {
  RoundStatus round{.round = whole(object, "round"),
                    .world_size = whole(object, "world_size"),
                    .from_s = number(object, "from_s"),
                    .cause = words(object, "cause")};
  if (!object.at("to_s").is_null()) round.to_s = number(object, "to_s");
  return round;
}

// Shares were sent, not times: of a second, which has the same shares.
LedgerTotals ledger_from(const json& object) {
  constexpr std::chrono::duration<double> kWallMax = std::chrono::hours(24 * 3650);
  using Time = TimeParts::Time;
  const auto time = [&](double seconds) {
    const std::chrono::duration<double> given(seconds);
    return std::chrono::duration_cast<Time>(std::clamp(given, decltype(given)::zero(), kWallMax));
  };
  LedgerTotals ledger{.wall = time(number(object, "elapsed_s"))};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    const auto part = static_cast<TimePart>(i);
    const auto it = object.at("parts").find(name_of(part));
    if (it != object.at("parts").end()) ledger.parts[part] = time(it->get<double>());
  }
  return ledger;
}

NodeStatus node_from(const json& object) {
  NodeStatus node{.id = words(object, "id"),
                  .host = words(object, "host"),
                  .address = words(object, "address"),
                  .phase = words(object, "phase"),
                  .group_rank = whole(object, "group_rank"),
                  .base_rank = whole(object, "base_rank"),
                  .local_world_size = whole(object, "local_world_size"),
                  .silent = duration(object, "silent_ms")};
  for (const json& rank : list(object, "ranks")) node.ranks.push_back(rank_from(rank));
  if (const auto memory = object.find("memory"); memory != object.end()) {
    node.memory =
        MemoryUse{.used = count(*memory, "used_bytes"), .size = count(*memory, "size_bytes")};
    if (memory->contains("behind_ms")) node.memory->behind = duration(*memory, "behind_ms");
  }
  return node;
}

void read_progress(const json& object, RunStatus& run) {
  if (object.contains("elapsed_s")) run.ledger = ledger_from(object);
  if (object.contains("step")) {
    run.step = count(object, "step");
    run.steps_per_s = number(object, "steps_per_s");
    if (object.contains("steps_left")) run.steps_left = count(object, "steps_left");
  }
  if (object.contains("late")) {
    run.late.emplace();
    for (const json& late : list(object, "late")) run.late->push_back(late_from(late));
  }
  for (const json& round : list(object, "rounds")) run.rounds.push_back(round_from(round));
  for (const json& event : list(object, "events")) {
    const bool trouble = words(event, "level") == "warning";
    run.events.push_back({number(event, "at_s"), trouble, words(event, "text")});
  }
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
                .verdict = {}};
  if (object.contains("left_ms")) run.left = duration(object, "left_ms");
  if (object.contains("verdict")) {
    const json& verdict = object.at("verdict");
    run.verdict = {words(verdict, "kind"), whole(verdict, "exit_code"), words(verdict, "text")};
  }
  read_progress(object, run);
  for (const json& node : object.at("nodes").get_ref<const json::array_t&>()) {
    run.nodes.push_back(node_from(node));
  }
  return run;
}

}  // namespace

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
