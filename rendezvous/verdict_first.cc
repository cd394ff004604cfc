// Which of several deaths was the cause of the others.

#include <algorithm>
#include <set>

#include "common/assert.h"
#include "rendezvous/verdict.h"

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

FirstCause stuck(const WorkerDeath& death, const WorkerDeath& witness) {
  FirstCause cause{.death = death, .exit_code = std::max(1, exit_status(witness)), .witness = {}};
  cause.death.fault = Fault::kStuck;
  cause.witness = "rank " + std::to_string(witness.rank) + " gave up waiting for it";
  if (!witness.detail.empty()) cause.witness += " (" + first_line(witness.detail) + ")";
  return cause;
}

}  // namespace

FirstCause first_cause(const std::vector<WorkerDeath>& deaths) {
  DDPRUN_ASSERT(!deaths.empty());
  const auto reported = std::find_if(deaths.begin(), deaths.end(), own_doing);
  const WorkerDeath* first = reported == deaths.end() ? &deaths.front() : &*reported;

  std::set<int> seen{first->rank};
  while (is_victim(*first) && first->blames >= 0) {
    const WorkerDeath* blamed = death_of(deaths, first->blames);
    if (!blamed || !seen.insert(blamed->rank).second) break;
    if (own_doing(*blamed)) {
      first = blamed;
      continue;
    }
    if (const WorkerDeath* witness = who_waited_for(deaths, blamed->rank)) {
      return stuck(*blamed, *witness);
    }
    break;
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
