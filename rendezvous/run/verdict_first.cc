// Which of several deaths was the cause of the others.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/assert.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

bool own_doing(const WorkerDeath& death) { return !death.stopped_by_us || death.was_failing; }

// It only says that another rank is gone, or does not come.
bool is_victim(const WorkerDeath& death) {
  return death.fault == Fault::kPeerLost || death.fault == Fault::kTimedOut;
}

const WorkerDeath* death_of(const std::vector<WorkerDeath>& deaths, int rank) {
  const auto found = std::find_if(deaths.begin(), deaths.end(),
                                  [&](const WorkerDeath& death) { return death.rank == rank; });
  return found == deaths.end() ? nullptr : &*found;
}

const WorkerDeath* who_waited_for(const std::vector<WorkerDeath>& deaths, int rank) {
  const auto found = std::find_if(deaths.begin(), deaths.end(), [&](const WorkerDeath& death) {
    return own_doing(death) && death.fault == Fault::kTimedOut && death.blames == rank;
  });
  return found == deaths.end() ? nullptr : &*found;
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kShown = 300;
  return text.substr(0, std::min(text.find('\n'), kShown));
}

// Something that `witness` tells of a rank whose own end says less, or was our doing.
FirstCause accused(const WorkerDeath& death, Fault fault, const WorkerDeath& witness,
                   std::string words) {
  const bool own_end = own_doing(death) && !cut_short(death) && exit_status(death) != 0;
  FirstCause cause{.death = death,
                   .exit_code = std::max(1, exit_status(own_end ? death : witness)),
                   .witness = std::move(words)};
  cause.death.fault = fault;
  return cause;
}

std::string said_by(const WorkerDeath& witness, const std::string& what) {
  const std::string text = "rank " + std::to_string(witness.rank) + " " + what;
  return witness.detail.empty() ? text : text + " (" + first_line(witness.detail) + ")";
}

FirstCause stuck(const WorkerDeath& death, const WorkerDeath& witness) {
  return accused(death, Fault::kStuck, witness, said_by(witness, "gave up waiting for it"));
}

// "step 12 (collective #40)", as far as it is known; else empty.
std::string place(const WorkerDeath& death, std::int64_t step) {
  const std::string collective =
      death.collective > 0 ? "collective #" + std::to_string(death.collective) : "";
  if (death.steps == 0) return collective;
  return "step " + std::to_string(step) + (collective.empty() ? "" : " (" + collective + ")");
}

FirstCause left_early(const WorkerDeath& gone, const WorkerDeath& witness) {
  const std::string last = place(gone, gone.steps), waits = place(witness, witness.steps + 1);
  std::string text = last.empty() ? "" : "its last was " + last + ", and ";
  text += "rank " + std::to_string(witness.rank) + " waited for it";
  if (!waits.empty()) text += " in " + waits;
  return accused(gone, Fault::kLeftEarly, witness, std::move(text));
}

// The rank that most others disagree with; -1: none, or there is another as good.
int odd_rank(const std::vector<WorkerDeath>& deaths) {
  std::map<int, int> votes;
  for (const WorkerDeath& death : deaths) {
    if (death.fault == Fault::kMismatch && death.blames >= 0) ++votes[death.blames];
  }
  int odd = -1, most = 0;
  for (const auto& [rank, count] : votes) {
    if (count == most) odd = -1;
    if (count > most) odd = rank, most = count;
  }
  return odd;
}

// The ranks do not agree: who says so first is rarely who is wrong.
std::optional<FirstCause> mismatched(const std::vector<WorkerDeath>& deaths,
                                     const WorkerDeath& first) {
  const WorkerDeath* odd = death_of(deaths, odd_rank(deaths));
  if (!odd || odd->rank == first.rank) return std::nullopt;
  return accused(*odd, Fault::kMismatch, first, said_by(first, "saw it"));
}

// What a victim says of a rank that did not fail itself.
std::optional<FirstCause> accusation(const std::vector<WorkerDeath>& deaths,
                                     const std::vector<WorkerDeath>& successes,
                                     const WorkerDeath& victim) {
  const WorkerDeath* ended = death_of(successes, victim.blames);
  if (ended && ended->fault != Fault::kAborted) return left_early(*ended, victim);
  const WorkerDeath* blamed = ended ? ended : death_of(deaths, victim.blames);
  if (!blamed) return std::nullopt;
  if (blamed->fault == Fault::kAborted && (ended || !own_doing(*blamed))) {
    return accused(*blamed, Fault::kAborted, victim, said_by(victim, "saw it"));
  }
  if (own_doing(*blamed)) return std::nullopt;
  if (blamed->fault == Fault::kLeftEarly) return left_early(*blamed, victim);
  if (const WorkerDeath* witness = who_waited_for(deaths, blamed->rank)) {
    return stuck(*blamed, *witness);
  }
  return std::nullopt;
}

}  // namespace

bool shows_cause(const std::vector<WorkerDeath>& deaths,
                 const std::vector<WorkerDeath>& successes) {
  return std::any_of(deaths.begin(), deaths.end(), [&](const WorkerDeath& death) {
    return own_doing(death) && (!is_victim(death) || death_of(successes, death.blames));
  });
}

bool lacks_cause(const std::vector<WorkerDeath>& deaths,
                 const std::vector<WorkerDeath>& successes) {
  const bool any_victim = std::any_of(deaths.begin(), deaths.end(), [](const WorkerDeath& death) {
    return own_doing(death) && death.fault == Fault::kPeerLost;
  });
  return any_victim && !shows_cause(deaths, successes);
}

FirstCause first_cause(const std::vector<WorkerDeath>& deaths,
                       const std::vector<WorkerDeath>& successes) {
  DDPRUN_ASSERT(!deaths.empty());
  const auto reported = std::find_if(deaths.begin(), deaths.end(), own_doing);
  const WorkerDeath* first = reported == deaths.end() ? &deaths.front() : &*reported;
  if (first->fault == Fault::kMismatch) {
    if (const auto cause = mismatched(deaths, *first)) return *cause;
  }
  std::set<int> seen{first->rank};
  while (is_victim(*first) && first->blames >= 0) {
    if (const auto cause = accusation(deaths, successes, *first)) return *cause;
    const WorkerDeath* blamed = death_of(deaths, first->blames);
    if (!blamed || !own_doing(*blamed) || !seen.insert(blamed->rank).second) break;
    first = blamed;
  }
  if (is_victim(*first)) {
    const auto culprit = std::find_if(deaths.begin(), deaths.end(), [](const WorkerDeath& death) {
      return own_doing(death) && !is_victim(death);
    });
    if (culprit != deaths.end()) first = &*culprit;
  }
  const int code = cut_short(*first) ? 1 : exit_status(*first);
  return {.death = *first, .exit_code = std::max(1, code), .witness = {}};
}

}  // namespace ddprun::rendezvous
