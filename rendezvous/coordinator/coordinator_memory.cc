// What the Coordinator remembers beyond its own life, and what it forgets while it lives.

#include <algorithm>

#include "common/assert.h"
#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/journal/replay.h"

namespace ddprun::rendezvous {
namespace {

// Whoever asks what became of a run does so soon; a daemon that serves for years forgets the rest.
constexpr std::chrono::hours kRemembered{1};

Replay replayed(const Journal& journal) {
  Replay replay;
  for (const JournalEntry& entry : journal.entries) {
    const bool taken = replay.take(entry);
    DDPRUN_ASSERT(taken);  // decode_journal() has seen to that.
  }
  return replay;
}

}  // namespace

void Coordinator::load(const Journal& journal) { restore(replayed(journal)); }

void Coordinator::replay(const Journal& journal, TimePoint now, const std::string& clock) {
  Replay last = replayed(journal);
  if (last.clock != clock || last.now > now) last.rebase(now);
  last.now = now;
  if (last.clock != clock) records_ += encode_record(ClockChange{clock, now});
  last.clock = clock;
  restore(std::move(last));
  // Nobody hears what follows from it; whoever finds us says where it stands and is answered.
  (void)on_recovered(now);
  for (const auto& [run_id, run] : runs_) note_idle(run_id, run);
}

void Coordinator::restore(Replay last) {
  DDPRUN_ASSERT(runs_.empty() && peers_.empty() && due_.empty());
  std::erase_if(last.runs, [](const auto& run) { return run.second.blank(); });
  runs_ = std::move(last.runs);
  now_ = last.now;
  clock_ = std::move(last.clock);
  for (const auto& [run_id, run] : runs_) schedule(run_id, run);
}

std::vector<LinkAction> Coordinator::on_recovered(TimePoint now) {
  enter(now);
  for (auto& [run_id, run] : runs_) {
    if (run.state() == Run::State::kEnded) continue;
    step(run_id, {"", Recovered{}});
    const auto links = links_.find(run_id);
    if (links == links_.end()) continue;
    // Who is still connected need not find us again.
    std::set<NodeId> here;  // In an order that does not depend on the memory's layout.
    for (const auto& [node, link] : links->second) here.insert(node);
    for (const NodeId& node : here) {
      if (run.misses(node)) step(run_id, {node, Returned{}});
    }
  }
  return std::exchange(actions_, {});
}

std::string Coordinator::snapshot(TimePoint now) const {
  std::string records;
  if (!clock_.empty()) records += encode_record(ClockChange{clock_, now});
  for (const auto& [run_id, run] : runs_) {
    if (!run.blank()) records += encode_record(RunSnapshot{run_id, now, run});
  }
  return records;
}

bool Coordinator::has_links(const std::string& run_id) const {
  return links_.contains(run_id);  // No entry there is empty.
}

void Coordinator::note_idle(const std::string& run_id, const Run& run) {
  if (run.state() != Run::State::kEnded || has_links(run_id)) return note_busy(run_id);
  if (idle_since_.try_emplace(run_id, now_).second) idle_.emplace(now_, run_id);
}

void Coordinator::note_busy(const std::string& run_id) {
  const auto since = idle_since_.find(run_id);
  if (since == idle_since_.end()) return;
  idle_.erase({since->second, run_id});
  idle_since_.erase(since);
}

// A run that nobody has joined yet, or whose first nodes went again. Nothing of it was recorded
// that its next node would not say again.
void Coordinator::forget_blank(const std::string& run_id) {
  const auto run = runs_.find(run_id);
  if (run != runs_.end() && run->second.blank() && !has_links(run_id)) erase(run_id);
}

void Coordinator::forget_idle() {
  while (!idle_.empty() && now_ - idle_.begin()->first >= kRemembered) {
    const std::string run_id = idle_.begin()->second;
    DDPRUN_ASSERT(runs_.at(run_id).state() == Run::State::kEnded);
    step(run_id, {"", Begin{}});  // Recorded: who replays must forget it at the same point.
    erase(run_id);
  }
}

void Coordinator::erase(const std::string& run_id) {
  DDPRUN_ASSERT(runs_.contains(run_id) && !has_links(run_id));
  schedule(run_id, Run());
  note_busy(run_id);
  sync_.erase(run_id);
  ledgers_.erase(run_id);
  compare_waiting(run_id);
  runs_.erase(run_id);
}

void Coordinator::check_invariants() const {
  DDPRUN_ASSERT(actions_.empty());
  std::size_t linked = 0;
  for (const auto& [run_id, links] : links_) {
    DDPRUN_ASSERT(!links.empty());
    linked += links.size();
    for (const auto& [node, link] : links) {
      const Peer& peer = peers_.at(link);
      DDPRUN_ASSERT(peer.run_id == run_id && peer.node == node);
    }
  }
  DDPRUN_ASSERT(linked == peers_.size());
  DDPRUN_ASSERT(due_.size() == due_of_.size() && idle_.size() == idle_since_.size());
  for (const auto& [run_id, due] : due_of_) {
    DDPRUN_ASSERT(due_.contains({due, run_id}) && runs_.contains(run_id));
  }
  for (const auto& [run_id, since] : idle_since_) {
    DDPRUN_ASSERT(idle_.contains({since, run_id}));
    DDPRUN_ASSERT(runs_.at(run_id).state() == Run::State::kEnded && !has_links(run_id));
  }
  for (const std::string& run_id : waiting_) DDPRUN_ASSERT(runs_.at(run_id).lacks_nodes());
  for (const auto& [run_id, totals] : sync_) DDPRUN_ASSERT(runs_.contains(run_id));
  for (const auto& [run_id, ledger] : ledgers_) DDPRUN_ASSERT(runs_.contains(run_id));
  for (const auto& [run_id, run] : runs_) run.check_invariants();
}

std::optional<TimePoint> Coordinator::forget_at() const {
  if (idle_.empty()) return std::nullopt;
  return idle_.begin()->first + kRemembered;
}

}  // namespace ddprun::rendezvous
