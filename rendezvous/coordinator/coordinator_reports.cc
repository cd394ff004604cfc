// The part of Coordinator that keeps the ledgers of the runs: what events and reports mean for
// them, and which node is sent their contents.

#include <algorithm>
#include <map>
#include <set>

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/ledger/account.h"
#include "rendezvous/ledger/findings.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {
namespace {

Incident incident_of(const NodeId& node, const WorkerDeath& death, int round, TimePoint now) {
  return {.at = now,
          .kind = "worker_failed",
          .fault = fault_name(death.fault),
          .what = what_happened(death),
          .who = "rank " + std::to_string(death.rank),
          .where = death.host,
          .evidence = death.evidence,
          .action = "",
          .node = node,
          .local_rank = death.local_rank,
          .round = round};
}

void send_account(LinkId link, const std::string& account, std::vector<LinkAction>& actions) {
  for (std::size_t at = 0; at < account.size(); at += kTextPieceBytes) {
    const bool more = at + kTextPieceBytes < account.size();
    actions.push_back(
        Send{link, encode(DaemonMessage(Account{account.substr(at, kTextPieceBytes), more}))});
  }
}

}  // namespace

void Coordinator::take_times(const Peer& peer, const Heartbeat& beat) {
  if (beat.times) ledgers_[peer.run_id].report(peer.node, *beat.times, now_);
}

// Before the step of the event.
void Coordinator::note_event(const std::string& run_id, const Run& run, const RunEvent& event) {
  RunLedger& ledger = ledgers_[run_id];
  if (std::holds_alternative<Begin>(event.what)) ledger = {};
  if (const auto* join = std::get_if<Join>(&event.what)) {
    ledger.joined(event.node, join->offer.host);
  }
  const auto* failed = std::get_if<Failed>(&event.what);
  if (failed && run.state() == Run::State::kRunning && failed->round == run.round()) {
    ledger.happened(incident_of(event.node, failed->death, run.round(), now_));
  }
  // A node that leaves does not receive the verdict.
  const auto* leave = std::get_if<Leave>(&event.what);
  const auto links = links_.find(run_id);
  if (leave && links != links_.end() && links->second.contains(event.node)) {
    ledger.lost(event.node, now_);
    AccountHead head = account_head(run_id, run, now_);
    if (!head.verdict) {
      head.verdict = {.kind = Verdict::Kind::kInterrupted, .text = leave->reason};
    }
    if (ledger.wants_account(event.node)) {
      send_account(links->second.at(event.node), account_json(ledger, head, now_), actions_);
    }
  }
  const auto* lost = std::get_if<Lost>(&event.what);
  if (!lost) return;
  ledger.lost(event.node, now_);
  if (run.state() != Run::State::kRunning || !run.has_node(event.node)) return;
  ledger.happened({.at = now_,
                   .kind = "node_lost",
                   .fault = "node_lost",
                   .what = "node lost",
                   .who = ledger.host_of(event.node),
                   .where = ledger.host_of(event.node),
                   .evidence = lost->how,
                   .action = "",
                   .node = event.node,
                   .local_rank = -1,
                   .round = run.round()});
}

// The last message on a run carries its ledger, and to agents that want it the whole account
// before.
void Coordinator::add_ledger(const std::string& run_id, const Run& run, RunAction& action) {
  auto* end = std::get_if<EndRun>(&action.message);
  const auto found = ledgers_.find(run_id);
  if (!end || found == ledgers_.end() || found->second.empty()) return;
  RunLedger& ledger = found->second;
  ledger.end(now_);
  end->verdict.ledger = ledger.totals(now_);
  const auto link = links_.at(run_id).find(action.node);
  if (link == links_.at(run_id).end() || !ledger.wants_account(action.node)) return;
  const std::string account = account_json(ledger, account_head(run_id, run, now_), now_);
  send_account(link->second, account, actions_);
}

void Coordinator::note_change(const std::string& run_id, const Run& run, Run::State before) {
  if (run.state() == before) return;
  RunLedger& ledger = ledgers_[run_id];
  if (run.state() == Run::State::kEnded) {
    // Workers of an interrupted run may still compute; what they have not saved is lost.
    const bool well = run.verdict() && run.verdict()->kind == Verdict::Kind::kSuccess;
    for (const RunLedger::Row& row : well ? std::vector<RunLedger::Row>() : ledger.rows(now_)) {
      ledger.lost(row.node, now_);
    }
    ledger.end(now_);
  }
  if (run.state() != Run::State::kRunning) return;
  ledger.round_began(run.round(), run.status(now_).world_size, run.has_kept(), now_);
}

void Coordinator::note_news(std::size_t from) {
  for (std::size_t i = from; i < news_.size(); ++i) {
    const auto ledger = ledgers_.find(news_[i].run_id);
    const auto since =
        ledger == ledgers_.end() ? TimeParts::Time{0} : ledger->second.since_began(now_);
    happenings_.push_back({.number = ++happenings_so_far_,
                           .at = now_,
                           .run_s = std::chrono::duration<double>(since).count(),
                           .news = news_[i]});
    if (happenings_.size() > kHappeningsMax) happenings_.pop_front();
  }
}

void Coordinator::add_ledger(RunStatus& status, TimePoint now) const {
  const auto found = ledgers_.find(status.run_id);
  if (found != ledgers_.end()) rendezvous::add_ledger(status, found->second, now);
  const auto sync = sync_.find(status.run_id);
  if (!status.late || sync == sync_.end()) return;
  for (LateStatus& late : *status.late) late.phase = sync->second.late_phase(late.rank);
}

std::optional<std::string> Coordinator::account(const std::string& run_id, TimePoint now) const {
  const auto run = runs_.find(run_id);
  const auto ledger = ledgers_.find(run_id);
  if (run == runs_.end() || ledger == ledgers_.end()) return std::nullopt;
  return account_json(ledger->second, account_head(run_id, run->second, now), now);
}

AccountHead Coordinator::account_head(const std::string& run_id, const Run& run,
                                      TimePoint now) const {
  const RunStatus status = run.status(now);
  AccountHead head{.run_id = run_id,
                   .min_nodes = status.nnodes_min,
                   .max_nodes = status.nnodes_max,
                   .max_restarts = status.max_restarts,
                   .restarts = status.restart_count,
                   .rounds = status.round + 1,
                   .verdict = run.verdict()};
  return head;
}

// The part of Coordinator that knows of runs beyond their end.

namespace {

constexpr std::size_t kEventsKept = 50;          // Of one run.
constexpr std::chrono::seconds kReportDelay{1};  // A run may have begun so long before we know.

// The nodes of the last round, as far as they have reported.
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

// The part of Coordinator that notices nodes that wait for each other under different run ids.

namespace {

// If more runs wait, the daemon is a service, and their waiting does not show a mistake.
constexpr std::size_t kNeighboursMax = 4;

}  // namespace

void Coordinator::compare_waiting(const std::string& run_id) {
  const auto run = runs_.find(run_id);
  const bool waits = run != runs_.end() && run->second.lacks_nodes();
  const bool waited = waiting_.contains(run_id);
  if (!waits && !waited) return;
  if (waits) {
    waiting_.insert(run_id);
  } else {
    waiting_.erase(run_id);
    if (run != runs_.end()) run->second.set_neighbour({});
  }
  for (const std::string& one : waiting_) {
    Run& here = runs_.at(one);
    std::string text;
    for (const std::string& other : waiting_) {
      const Run& there = runs_.at(other);
      if (other == one || !text.empty() || !here.could_be(there)) continue;
      if (waiting_.size() <= kNeighboursMax) text = "run " + other + " " + there.neighbour_text();
    }
    here.set_neighbour(text);
  }
}

// The part of Coordinator for those that watch a run: its ranks one by one, and what happened.

namespace {

constexpr std::size_t kEventsMax = 20;  // Of one run.

}  // namespace

DaemonStatus Coordinator::watched(TimePoint now) const {
  DaemonStatus all = status(now);
  std::map<std::string, RunStatus*> by_id;
  for (RunStatus& run : all.runs) {
    by_id[run.run_id] = &run;
    const auto ledger = ledgers_.find(run.run_id);
    if (ledger != ledgers_.end()) add_ranks(run, ledger->second, now);
  }
  for (const Happening& one : happenings_) {
    const auto run = by_id.find(one.news.run_id);
    if (run == by_id.end()) continue;
    const std::string where = one.news.node.empty() ? "" : one.news.node + ": ";
    run->second->events.push_back({one.run_s, one.news.is_trouble, where + one.news.text});
  }
  for (RunStatus& run : all.runs) {
    if (run.events.size() <= kEventsMax) continue;
    run.events.erase(run.events.begin(), run.events.end() - kEventsMax);
  }
  return all;
}

}  // namespace ddprun::rendezvous
