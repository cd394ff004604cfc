#include "worker_sdk/join/lives.h"

#include <map>
#include <mutex>

namespace ddprun::worker_sdk {
namespace {

// Ranks may be threads of one process, as in tests.
struct EndedLives {
  std::mutex mutex;
  std::map<std::string, int> count;
};

EndedLives& all_lives() {
  static EndedLives* const lives = new EndedLives;  // Groups may end after static objects.
  return *lives;
}

std::string key_of(const Plan& plan) {
  const Rendezvous& at = plan.rendezvous;
  return at.host + ":" + std::to_string(at.port) + " " + at.path + " " + plan.identity.run_id +
         " restart " + std::to_string(plan.identity.restart_count) + " rank " +
         std::to_string(plan.identity.rank);
}

}  // namespace

int ended_lives(const Plan& plan) {
  EndedLives& lives = all_lives();
  const std::lock_guard lock(lives.mutex);
  const auto found = lives.count.find(key_of(plan));
  return found == lives.count.end() ? 0 : found->second;
}

std::string life_prefix(const Plan& plan) {
  const int lives = plan.rendezvous.hosted_by_rank_0 ? 0 : ended_lives(plan);
  return lives == 0 ? "" : "/life " + std::to_string(lives + 1);
}

std::shared_ptr<void> begin_life(const Plan& plan) {
  return std::shared_ptr<void>(nullptr, [key = key_of(plan)](void*) {
    EndedLives& lives = all_lives();
    const std::lock_guard lock(lives.mutex);
    ++lives.count[key];
  });
}

}  // namespace ddprun::worker_sdk
