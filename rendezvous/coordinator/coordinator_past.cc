// The part of Coordinator that knows of runs beyond their end.

#include <algorithm>
#include <set>

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/ledger/account.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kEventsKept = 50;          // Of one run.
constexpr std::chrono::seconds kReportDelay{1};  // A run may have begun so long before we know.

// Of the last round; none: nobody has reported.
int nodes_at_end(const std::vector<RunLedger::Row>& rows, TimeParts::Time wall) {
  std::set<NodeId> nodes;
  for (const RunLedger::Row& row : rows) {
    const bool was_gone = row.gone_at && *row.gone_at < wall;
    if (!was_gone && row.times.rank >= 0) nodes.insert(row.node);
  }
  return static_cast<int>(nodes.size());
}

void add_account(EndedRun& ended, const RunLedger& ledger, const AccountHead& head, TimePoint now) {
  if (ledger.empty()) return;
  const auto rows = ledger.rows(now);
  ended.record.nodes = nodes_at_end(rows, ledger.wall(now));
  ended.record.host = rows.empty() ? "" : rows.front().host;
  ended.record.account = account_json(ledger, head, now);
  ended.verdict.ledger = ledger.totals(now);
}

}  // namespace

// After the step that has ended the run, and what is new by it.
void Coordinator::note_end(const std::string& run_id, const Run& run, Run::State before) {
  const bool has_ended = run.state() == Run::State::kEnded && before != Run::State::kEnded;
  if (!keeps_past_ || !has_ended || !run.verdict()) return;
  const RunLedger& ledger = ledgers_[run_id];
  const AccountHead head = account_head(run_id, run, now_);
  EndedRun ended{
      .record = {.run_id = run_id, .command = ledger.command(), .max_restarts = head.max_restarts},
      .verdict = *run.verdict()};
  RunRecord& record = ended.record;
  record.took_s = std::chrono::duration<double>(ledger.wall(now_)).count();
  record.exit_code = ended.verdict.exit_code;
  record.restarts = head.restarts;
  const auto rounds = ledger.rounds(now_);
  if (!rounds.empty()) record.world_size = rounds.back().world_size;
  const TimePoint began = now_ - ledger.wall(now_) - kReportDelay;
  for (const Happening& one : happenings_) {
    const bool earlier = !ledger.empty() && one.at < began;  // In another run of that id.
    if (one.news.run_id != run_id || earlier) continue;
    const std::string where = one.news.node.empty() ? "" : one.news.node + ": ";
    record.events.push_back({one.run_s, one.news.is_trouble, where + one.news.text});
  }
  const auto kept = static_cast<std::ptrdiff_t>(std::min(record.events.size(), kEventsKept));
  record.events.erase(record.events.begin(), record.events.end() - kept);
  add_account(ended, ledger, head, now_);
  ended_.push_back(std::move(ended));
}

bool Coordinator::has_ended(const std::string& run_id) const {
  const auto run = runs_.find(run_id);
  return run == runs_.end() || run->second.state() == Run::State::kEnded;
}

Result<std::string> Coordinator::history(const Command& command) const {
  if (!keeps_past_) {
    return Failure{Errc::kNotFound,
                   "this daemon keeps no history: start it with --state-dir or --etcd"};
  }
  if (command.run_id.empty()) return past_.list();
  if (auto one = past_.one(command.run_id)) return *std::move(one);
  return Failure{Errc::kNotFound, "this daemon has no record of an ended run '" + command.run_id +
                                      "'; ddprunctl history -e HOST:PORT lists those it does"};
}

}  // namespace ddprun::rendezvous
