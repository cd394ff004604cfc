#include "rendezvous/protocol/wire.h"

#include <array>

#include "common/archive/json.h"
#include "common/text/display.h"
#include "rendezvous/protocol/wire_fields.h"

namespace ddprun {

// An agent of another age may lack some: nothing was counted.
void counts(auto& a, auto& m) {
  for (std::size_t i = 0; i < m.kSize; ++i) {
    if (m.kRows[i].is_exported()) a.added(m.kRows[i].name, m.values[i]);
  }
}
void fields(auto& a, archive::Is<LateRank> auto& m) { a("rank", m.rank), counts(a, m.counts); }

}  // namespace ddprun

namespace ddprun::rendezvous {

void fields(auto& a, archive::Is<Hello> auto& m) {
  a("version", m.version), a("run_id", m.run_id), a("node", m.node);
  a.added("release", m.release), a.added("relays", m.relays);
}
void fields(auto& a, archive::Is<Join> auto& m) {
  a("offer", m.offer), a("after_round", m.after_round);
  a.added("living", m.living), a.added("serial", m.serial);
  a.added("beginning", m.beginning), a.added("prepares", m.prepares);
  a.added("holders", m.holders), a.added("kept_steps", m.kept_steps);
  a.added("min_ranks", m.min_ranks);
}
void fields(auto& a, archive::Is<SyncIncrease> auto& m) { counts(a, m.sums), a("late", m.late); }
void fields(auto& a, archive::Is<PlaceTimes> auto& m) {
  a("local_rank", m.local_rank), a("rank", m.rank), a("parts_us", m.parts);
  a("at", m.at);
  a.added("at_risk_us", m.at_risk), a.added("steps", m.steps);
  a.added("late_steps", m.late_steps), a.added("late_us", m.late);
  a.added("spans", m.spans), a.added("bins", m.bins);
  a.added("repeated", m.repeated);
  a.added("steps_left", m.steps_left), a.added("ran_us", m.ran), a.added("resident", m.resident);
  a.added("shards", m.shards), a.added("won_us", m.won), a.added("starts", m.starts);
}
void fields(auto& a, archive::Is<MemoryUse> auto& m) {
  a("used", m.used), a("size", m.size), a("behind_ms", m.behind);
  a.sparse("relayed", m.relayed);
}
void fields(auto& a, archive::Is<NodeTimes> auto& m) {
  a("places", m.places), a("memory", m.memory);
  a.added("wants_account", m.wants_account), a.added("command", m.command);
}
void fields(auto& a, archive::Is<Heartbeat> auto& m) {
  a("round", m.round), a("sync", m.sync);
  a.added("times", m.times);
}
void fields(auto& a, archive::Is<Finished> auto& m) { a("round", m.round); }
void fields(auto& a, archive::Is<Failed> auto& m) {
  a("round", m.round), a("death", m.death);
  a.added("noticed_us", m.noticed), a.added("clock", m.clock);
  a.sparse("unreachable", m.unreachable);
}
void fields(auto& a, archive::Is<Stopped> auto& m) {
  a("round", m.round), a("deaths", m.deaths);
  a.added("successes", m.successes);
  a.sparse("unreachable", m.unreachable);
}
void fields(auto& a, archive::Is<Leave> auto& m) {
  a("signal", m.signal), a("reason", m.reason);
  a.added("planned", m.planned);
}
void fields(auto&, archive::Is<Away> auto&) {}
void fields(auto& a, archive::Is<Slots> auto& m) {
  a("serial", m.serial), a("round", m.round), a("kept", m.kept), a("parked", m.parked);
  a("fallen", m.fallen), a("respawned", m.respawned);
  a.added("spares", m.spares), a.added("min_ranks", m.min_ranks);
}
void fields(auto& a, archive::Is<Waiting> auto& m) { a("left_ms", m.left), a("text", m.text); }
void fields(auto& a, archive::Is<Assign> auto& m) { a("seat", m.seat); }
void fields(auto& a, archive::Is<StopRound> auto& m) {
  a("round", m.round), a("reason", m.reason), a("final", m.final);
  a.added("lost_rank", m.lost_rank);
  a.added("restart", m.restart), a.added("max_restarts", m.max_restarts);
  a.added("keep", m.keep), a.added("planned", m.planned);
  a.added("awaits_cause", m.awaits_cause), a.added("lost_steps", m.lost_steps);
  a.added("waits", m.waits);
}
void fields(auto& a, archive::Is<EndRun> auto& m) { a("verdict", m.verdict); }
void fields(auto& a, archive::Is<Refuse> auto& m) { a("reason", m.reason); }
void fields(auto& a, archive::Is<Dismiss> auto& m) {
  a("reason", m.reason), a.added("waits", m.waits);
  a.added("hosts", m.hosts), a.added("for_step", m.for_step);
}
void fields(auto& a, archive::Is<Alive> auto& m) {
  a.added("beat_ms", m.beat), a.added("replaceable", m.replaceable);
  a.added("keeps", m.keeps), a.added("last", m.last);
  a("release", m.release);
}
void fields(auto& a, archive::Is<Respawn> auto& m) {
  a("granted", m.granted), a("restart_count", m.restart_count);
  a.added("refused", m.refused);
}
void fields(auto& a, archive::Is<Prepare> auto& m) { a("restart_count", m.restart_count); }
void fields(auto& a, archive::Is<Account> auto& m) { a("piece", m.piece), a("more", m.more); }
void fields(auto& a, archive::Is<Relay> auto& m) { a("stream", m.stream), a("port", m.port); }

std::string encode(const AgentMessage& message) {
  return archive::write_variant<archive::JsonText>(message, "is");
}
std::string encode(const DaemonMessage& message) {
  return archive::write_variant<archive::JsonText>(message, "is");
}
Result<AgentMessage> decode_agent_message(std::string_view body) {
  return archive::read_variant<AgentMessage>(body, "is");
}
Result<DaemonMessage> decode_daemon_message(std::string_view body) {
  return archive::read_variant<DaemonMessage>(body, "is");
}

std::string release_text(std::string_view release) {
  constexpr std::size_t kBytesMax = 64;
  const bool sane = !release.empty() && release.size() <= kBytesMax && is_plain_line(release);
  return sane ? "ddprun " + std::string(release) : "an older ddprun";
}

// The words for faults, on the wire and in the JSON form of a verdict.

namespace {

constexpr std::array<const char*, 33> kNames = {
    "unknown",       "exit",         "signal",       "crash",          "stack_overflow",
    "exception",     "import_error", "syntax_error", "cannot_start",   "missing_library",
    "out_of_memory", "no_memory",    "no_space",     "no_descriptors", "peer_lost",
    "timed_out",     "stuck",        "mismatch",     "aborted",        "left_early",
    "no_processes",  "gpu_memory",   "gpu_assert",   "gpu_access",     "gpu_broken",
    "no_gpu",        "nccl",         "nccl_version", "address_in_use", "no_file",
    "quota",         "time_limit",   "wrong_result"};
static_assert(kNames.size() == static_cast<std::size_t>(kLastFault) + 1);

const char* what_of(Fault fault) {
  switch (fault) {
    case Fault::kOutOfMemory: return "out of memory";
    case Fault::kStackOverflow: return "stack overflow";
    case Fault::kStuck: return "stuck";
    case Fault::kNoMemory: return "memory was refused";
    case Fault::kNoSpace: return "the disk is full";
    case Fault::kNoDescriptors: return "too many open files";
    case Fault::kGpuMemory: return "CUDA out of memory";
    case Fault::kGpuAssert: return "an assertion failed on its GPU";
    case Fault::kGpuAccess: return "illegal access on its GPU";
    case Fault::kGpuBroken: return "its GPU failed";
    case Fault::kNoGpu: return "it has no GPU to use";
    case Fault::kNccl: return "an error of NCCL";
    case Fault::kNcclVersion: return "its NCCL has another version";
    case Fault::kAddressInUse: return "its port is in use";
    case Fault::kNoFile: return "a file is missing";
    case Fault::kQuota: return "its disk quota is used up";
    case Fault::kTimeLimit: return "the time limit is reached";
    case Fault::kLeftEarly: return "left early";
    case Fault::kWrongResult: return "it computed wrong";
    case Fault::kAborted: return "called abort()";
    default: return nullptr;
  }
}

}  // namespace

std::string what_happened(const WorkerDeath& death) {
  const char* known = what_of(death.fault);
  return known ? known : how_it_ended(death);
}

const char* fault_name(Fault fault) { return kNames.at(static_cast<std::size_t>(fault)); }

Fault fault_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Fault>(i);
  }
  return Fault::kUnknown;
}

}  // namespace ddprun::rendezvous
