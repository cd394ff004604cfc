// The part of Run that collects who has died in a round, and who was first.

#include <algorithm>

#include "common/assert.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {

void Run::note_kept(std::int64_t steps) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  kept_steps_ = std::clamp(steps, kept_steps_, kMost);
}

void Run::report(const WorkerDeath& death) {
  note_kept(death.kept_steps);
  constexpr std::size_t kDetailsMax = 1000;  // The last words of more are no help.
  if (!dead_ranks_.insert(death.rank).second) {
    // The first report may come before its agent knows why.
    for (WorkerDeath& known : deaths_) {
      const bool is_brief = known.fault == Fault::kUnknown || known.detail.empty();
      const bool says_more = is_brief && death.fault != Fault::kUnknown;
      if (known.rank == death.rank && says_more) known = death;
    }
    return;
  }
  deaths_.push_back(death);
  if (deaths_.size() > kDetailsMax) std::string().swap(deaths_.back().detail);
}

// Deaths count in the order in which they are told, for clocks of hosts are not compared; but the
// agents of one host have one clock.
void Run::report_failed(const Failed& failed) {
  const std::size_t known = deaths_.size();
  report(failed.death);
  if (deaths_.size() == known) return;
  const bool same_clock = !failed.clock.empty() && failed.clock == first_death_.clock;
  const bool is_first = known == 0 || (same_clock && failed.noticed < first_death_.noticed);
  if (!is_first) return;
  first_death_ = {failed.noticed, failed.clock};
  std::rotate(deaths_.begin(), deaths_.end() - 1, deaths_.end());
}

void Run::report_success(const WorkerDeath& success) {
  constexpr std::size_t kMost = 1000;
  const bool known = std::any_of(successes_.begin(), successes_.end(),
                                 [&](const auto& other) { return other.rank == success.rank; });
  if (!known && successes_.size() < kMost) successes_.push_back(success);
}

// Nobody has to wait any longer for workers that have left their group.
void Run::tell_of_cause(const NodeId& reporter) {
  if (keep_ || lacks_cause(deaths_, successes_)) return;
  for (const auto& [node, member] : members_) {
    if (member.phase != Phase::kStopping || node == reporter) continue;
    tell(node, stop_of(member, "the cause is known"));
  }
}

// The next round is sealed. If a worker's failure was why, it may be one of several alike.
void Run::remember_failure() {
  constexpr std::size_t kMost = 16;
  if (!workers_blamed_ || deaths_.empty()) return;
  past_.push_back(remembered(first_cause(deaths_, successes_)));
  if (past_.size() > kMost) past_.erase(past_.begin());
}

}  // namespace ddprun::rendezvous
