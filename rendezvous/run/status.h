#pragma once
// What a daemon knows of its runs, as plain values and as JSON: what GET /status answers, what
// ddprunctl requests and shows (docs/operations.md). Filled in by Run::status and
// Coordinator::status. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/history/run_record.h"
#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// A place of a node, from its ledger. Only for clients that watch: there may be thousands.
struct RankStatus {
  int rank = -1;  // The last that it had; -1: none yet.
  int local_rank = 0;
  std::string at{};         // What its time passes as: "forward", "restart" (docs/ledger.md).
  std::uint64_t steps = 0;  // Since the run's start, those that were lost included.
  double steps_per_s = 0;   // Lately; so is late_ms: how long the others waited for it, a step.
  double late_ms = 0;
  double cpu = 0;              // Lately: how many processors its process occupied.
  std::uint64_t resident = 0;  // Bytes of its memory; 0: not known.
  std::uint64_t shards = 0;    // Of its last step, in an elastic job; 0: not known.
};

struct NodeStatus {
  NodeId id{};
  std::string host{};
  std::string address{};
  std::string phase{};  // "ready", "seated", "finished", "stopping", "stopped", "empty".
  int group_rank = -1;  // -1: it has no seat.
  int base_rank = -1;   // Global rank of its local rank 0; -1: it has no seat.
  int local_world_size = 1;
  Milliseconds silent{0};             // Since its last message.
  std::vector<RankStatus> ranks{};    // By local rank; only for those that watch.
  std::optional<MemoryUse> memory{};  // Of its memory folder, if it has one; likewise.
};

// A round that has begun.
struct RoundStatus {
  int round = 0;
  int world_size = 0;
  double from_s = 0;             // Since the run's start.
  std::optional<double> to_s{};  // Nothing: it runs.
  std::string cause{};           // Why the round before ended; empty: unknown.
};

// A rank that the others wait for, lately.
struct LateStatus {
  static constexpr std::size_t kMost = 64;  // Of a run, the worst first.
  int rank = -1;
  std::string host{};
  double late_ms = 0;       // How long they wait, a step.
  std::string phase{};      // In which it loses most of that; empty: not known.
  double late_s = 0;        // How long they have waited for it since the run's start, in all ...
  std::uint64_t steps = 0;  // ... of these steps.
};

// Whether that long a step, at that rate, is more than noise.
bool is_late(double late_ms, double steps_per_s);

struct VerdictStatus {
  std::string kind{};  // "success", "worker_failed", "node_lost", "timed_out", "interrupted".
  int exit_code = 0;
  std::string text{};
};

struct RunStatus {
  std::string run_id{};
  std::string state{};  // "gathering", "last call", "running", "closing", "ended".
  int round = 0;        // The present or the next one.
  int restart_count = 0;
  int max_restarts = 0;
  int nnodes_min = 0;  // 0: no node has ever joined.
  int nnodes_max = 0;
  int world_size = 0;                      // Of the round that runs; 0: none does.
  std::string waiting_for{};               // One sentence.
  std::optional<Milliseconds> left{};      // Until waiting ends by itself.
  std::optional<VerdictStatus> verdict{};  // Once the outcome is known.
  std::optional<LedgerTotals> ledger{};    // Where its time went; nothing: not reported.
  std::vector<RoundStatus> rounds{};       // The last 64.
  std::optional<std::uint64_t> step{};     // The furthest of the ranks; nothing: not reported.
  double steps_per_s = 0;                  // Lately.
  std::optional<std::vector<LateStatus>> late{};  // The worst first; nothing: no step is known.
  std::uint64_t steps_left = 0;                   // As the program reported; 0: it has not.
  std::vector<RunEventText> events{};  // The last, the oldest first; only for those that watch.
  std::vector<NodeStatus> nodes{};     // Those with a seat by group rank, then the others.
};

// At the present rate; nothing: not known.
std::optional<double> seconds_left(const RunStatus& run);

struct DaemonStatus {
  std::vector<RunStatus> runs;
};

const char* kind_name(Verdict::Kind kind);  // As in VerdictStatus::kind.

// Plain ASCII: it may be cut anywhere into pieces that are text themselves.
std::string encode(const DaemonStatus& status);
std::string encode_indented(const DaemonStatus& status);  // For people.

// Errc::kBadMessage if it is not what encode() makes.
Result<DaemonStatus> decode_status(std::string_view text);

}  // namespace ddprun::rendezvous
