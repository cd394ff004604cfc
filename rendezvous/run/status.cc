#include "rendezvous/run/status.h"

#include <algorithm>

#include "common/archive/json.h"
#include "common/history/run_record.h"

namespace ddprun::rendezvous {
namespace {

using archive::json;
using Seconds = std::chrono::duration<double>;

// Texts are as long as the last words of many workers.
constexpr archive::Bounds kStatusLimits{.text_bytes = std::size_t{64} << 20,
                                        .depth = 16,
                                        .count = std::numeric_limits<std::uint64_t>::max(),
                                        .longest = archive::kDistanceMax};

// Shares of the time of all ranks in the run.
template <class A>
void write_ledger(A& a, const LedgerTotals& ledger) {
  a("elapsed_s", Seconds(ledger.wall).count());
  a.nullable("goodput", ledger.has_goodput() ? std::optional(ledger.goodput()) : std::nullopt);
  a.object("parts", [&] {
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      const auto part = static_cast<TimePart>(i);
      const bool in_run = part != TimePart::kSpare && part != TimePart::kGone;
      if (in_run && ledger.share(part) > 0) a(name_of(part), ledger.share(part));
    }
  });
}

// Shares were sent, not times: of a second, which has the same shares.
LedgerTotals read_ledger(const auto& a) {
  const auto time = [](double seconds) {
    const Seconds most = kTimeMax;
    return std::chrono::duration_cast<TimeParts::Time>(
        std::clamp(Seconds(seconds), Seconds::zero(), most));
  };
  double elapsed = 0;
  a("elapsed_s", elapsed);
  LedgerTotals ledger{.wall = time(elapsed)};
  const auto parts = a.inner("parts");
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    std::optional<double> share;
    const auto part = static_cast<TimePart>(i);
    if (parts(name_of(part), share)) ledger.parts[part] = time(*share);
  }
  return ledger;
}

// Other names than on the wire: people read these.
struct MemoryStatus {
  MemoryUse use;
};
void fields(auto& a, archive::Is<MemoryStatus> auto& m) {
  a("used_bytes", m.use.used), a("size_bytes", m.use.size), a("behind_ms", m.use.behind);
  a.sparse("relayed", m.use.relayed);
}

}  // namespace

// The names are in docs/operations.md, too.
void fields(auto& a, archive::Is<RankStatus> auto& m) {
  a("rank", m.rank), a("local_rank", m.local_rank), a("at", m.at), a("steps", m.steps);
  a("late_ms", m.late_ms), a("steps_per_s", m.steps_per_s);
  a.added("cpu", m.cpu), a.added("resident_bytes", m.resident);
  a.sparse("shards", m.shards);
}
void fields(auto& a, archive::Is<LateStatus> auto& m) {
  a("rank", m.rank), a("host", m.host), a("late_ms", m.late_ms), a("late_s", m.late_s);
  a("late_steps", m.steps), a.sparse("phase", m.phase);
}
template <class A>
void fields(A& a, archive::Is<NodeStatus> auto& m) {
  a("id", m.id), a("host", m.host), a("address", m.address), a("phase", m.phase);
  a("group_rank", m.group_rank), a("base_rank", m.base_rank);
  a("local_world_size", m.local_world_size), a("silent_ms", m.silent);
  std::optional<MemoryStatus> memory;
  if (m.memory) memory = {*m.memory};
  a("memory", memory);
  if constexpr (A::kReads) m.memory = memory ? std::optional(memory->use) : std::nullopt;
  a.sparse("ranks", m.ranks);
}
void fields(auto& a, archive::Is<RoundStatus> auto& m) {
  a("round", m.round), a("world_size", m.world_size), a("from_s", m.from_s);
  a("cause", m.cause), a.nullable("to_s", m.to_s);
}
void fields(auto& a, archive::Is<VerdictStatus> auto& m) {
  a("kind", m.kind), a("exit_code", m.exit_code), a("text", m.text);
}
template <class A>
void fields(A& a, archive::Is<RunStatus> auto& m) {
  a("run_id", m.run_id), a("state", m.state), a("round", m.round);
  a("restart_count", m.restart_count), a("max_restarts", m.max_restarts);
  a("nnodes_min", m.nnodes_min), a("nnodes_max", m.nnodes_max), a("world_size", m.world_size);
  a("waiting_for", m.waiting_for), a("left_ms", m.left), a("verdict", m.verdict);
  if constexpr (A::kReads) {
    if (a.find("elapsed_s")) m.ledger = read_ledger(a);
  } else {
    if (m.ledger) write_ledger(a, *m.ledger);
    a("eta_s", seconds_left(m));
  }
  if (a("step", m.step)) a("steps_per_s", m.steps_per_s);
  a("late", m.late), a.sparse("steps_left", m.steps_left);
  a.sparse("rounds", m.rounds), a.sparse("events", m.events), a("nodes", m.nodes);
}
void fields(auto& a, archive::Is<DaemonStatus> auto& m) { a("runs", m.runs); }

namespace {

// Host names and last words may hold any bytes; JSON text may not.
std::string text_of(const DaemonStatus& status, int indent) {
  return archive::tree_of(status, kStatusLimits)
      .dump(indent, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
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

std::string encode(const DaemonStatus& status) { return text_of(status, -1); }
std::string encode_indented(const DaemonStatus& status) { return text_of(status, 2) + "\n"; }

Result<DaemonStatus> decode_status(std::string_view text) {
  return archive::read_message<DaemonStatus>(text, "a status", kStatusLimits);
}

}  // namespace ddprun::rendezvous
