#pragma once
// The fields of what several messages and records have in them: messages of agents and daemon
// (wire.cc), what the daemon remembers of a run (run/run_report.cc), and orders to a memory server.
// See common/archive/archive.h. Pure.

#include <string>

#include "common/archive/archive.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun {

static_assert(archive::kSumMax == kTimeMax);

inline std::string to_archive(const TimeParts& parts) { return to_text(parts); }
inline bool from_archive(const std::string& text, TimeParts& parts) {
  const auto parsed = parse_time_parts(text);
  if (parsed) parts = *parsed;
  return parsed.has_value();
}

inline std::string to_archive(const StartTotals& totals) { return to_text(totals); }
inline bool from_archive(const std::string& text, StartTotals& totals) {
  const auto parsed = parse_start_totals(text);
  if (parsed) totals = *parsed;
  return parsed.has_value();
}

inline std::string to_archive(const ShardTotals& totals) { return to_text(totals); }
inline bool from_archive(const std::string& text, ShardTotals& totals) {
  const auto parsed = parse_shard_totals(text);
  if (parsed) totals = *parsed;
  return parsed.has_value();
}

inline int to_archive(TimePart part) { return static_cast<int>(part); }
inline bool from_archive(int number, TimePart& part) {  // A newer ddprun may have more.
  const bool known = number >= 0 && number < static_cast<int>(kTimeParts);
  part = known ? static_cast<TimePart>(number) : TimePart::kUnknown;
  return true;
}

inline std::string to_archive(Fault fault) { return rendezvous::fault_name(fault); }
inline bool from_archive(const std::string& word, Fault& fault) {
  fault = rendezvous::fault_of_name(word);
  return true;
}

void fields(auto& a, archive::Is<WorkerDeath> auto& m) {
  a("rank", m.rank), a("local_rank", m.local_rank), a("pid", m.pid), a("host", m.host);
  a("exit_code", m.exit_code), a("signal", m.signal), a("stopped_by_us", m.stopped_by_us);
  a("detail", m.detail);
  a.added("fault", m.fault), a.added("evidence", m.evidence), a.added("blames", m.blames);
  a.added("was_failing", m.was_failing);
  a.added("collective", m.collective), a.added("steps", m.steps);
  a.added("work", m.work), a.added("can_skip", m.can_skip);
  a.added("kept_steps", m.kept_steps);
}
void fields(auto& a, archive::Is<NodeNetwork> auto& m) {
  a("interface", m.interface), a("address", m.address), a("subnet", m.subnet);
  a.sparse("mbit", m.mbit), a.sparse("virtual", m.is_virtual), a.sparse("named", m.is_named);
}
void fields(auto& a, archive::Is<DataPlace> auto& m) {
  a("interface", m.interface), a("address", m.address), a("interfaces", m.interfaces);
}
void fields(auto& a, archive::Is<LedgerTotals> auto& m) {
  a("places", m.places), a("wall_us", m.wall), a("parts_us", m.parts);
  a.added("changes", m.changes), a.added("repeated", m.repeated);
  a.added("starts", m.starts), a.added("shards", m.shards);
}

}  // namespace ddprun

namespace ddprun::rendezvous {

void fields(auto& a, archive::Is<RunConfig> auto& m) {
  a("nnodes_min", m.nnodes_min), a("nnodes_max", m.nnodes_max), a("max_restarts", m.max_restarts);
  a("join_timeout_ms", m.join_timeout), a("last_call_ms", m.last_call);
  a("heartbeat_timeout_ms", m.heartbeat_timeout), a("stop_timeout_ms", m.stop_timeout);
  a.added("join_at_restart", m.join_at_restart);
  a.added("standstill_timeout_ms", m.standstill_timeout);
  a.added("min_ranks", m.min_ranks);
  a.sparse("audit_per_million", m.audit_per_million);
}
void fields(auto& a, archive::Is<NodeOffer> auto& m) {
  a("host", m.host), a("address", m.address), a("store_port", m.store_port);
  a("local_world_size", m.local_world_size), a("role", m.role), a("node_rank", m.node_rank);
  a("hosts_endpoint", m.hosts_endpoint), a("config", m.config);
  a.added("scheduler_step", m.scheduler_step);
  a.added("store_at_endpoint", m.store_at_endpoint);
  a("memory_port", m.memory_port);
  a.sparse("networks", m.networks), a.sparse("link_address", m.link_address),
      a.sparse("seen_at", m.seen_at);
}
void fields(auto& a, archive::Is<MemoryPeer> auto& m) {
  a("node", m.node), a("host", m.host), a("address", m.address), a("port", m.port);
}
void fields(auto& a, archive::Is<MemoryFill> auto& m) { a("from", m.from), a("as", m.as); }
void fields(auto& a, archive::Is<Neighbour> auto& m) {
  a("host", m.host), a("address", m.address), a("port", m.port);
  a.sparse("seen_at", m.seen_at);
}
void fields(auto& a, archive::Is<Seat> auto& m) {
  a("round", m.round), a("restart_count", m.restart_count), a("group_rank", m.group_rank);
  a("group_world_size", m.group_world_size), a("base_rank", m.base_rank);
  a("world_size", m.world_size), a("role_base_rank", m.role_base_rank);
  a("role_world_size", m.role_world_size), a("master_address", m.master_address);
  a("master_port", m.master_port), a("members", m.members);
  a.added("workers", m.workers), a.added("skip", m.skip), a.sparse("lost_work", m.lost_work);
  a.added("lost_steps", m.lost_steps);
  a.added("store_at_endpoint", m.store_at_endpoint), a.sparse("master_node", m.master_node);
  a("copy_to", m.copy_to), a("fill", m.fill);
  a.sparse("master_host", m.master_host), a("neighbour", m.neighbour), a("data", m.data);
  a.sparse("data_why", m.data_why), a.sparse("data_warns", m.data_warns);
}
void fields(auto& a, archive::Is<Verdict> auto& m) {
  a.enumerator("kind", m.kind, Verdict::Kind::kInterrupted), a("exit_code", m.exit_code),
      a("text", m.text);
  a("first_cause", m.first_cause), a("victims", m.victims);
  a.added("advice", m.advice);
  a.added("ledger", m.ledger);
  a.added("restarts", m.restarts), a.added("again", m.again);
}

}  // namespace ddprun::rendezvous
