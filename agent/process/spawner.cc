#include "agent/process/spawner.h"

#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

// With what it has forked into its group meanwhile.
void kill_and_reap(int pid) {
  ::kill(-pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

constexpr std::size_t kAtOnceMax = 4;  // So many processors they keep busy.

}  // namespace

bool Spawner::add(WorkerSpec spec, WorkerEnds ends) {
  if (births_.size() == kAtOnceMax) finish_first();
  if (failed_) return false;
  births_.emplace_back(std::move(spec), std::move(ends));
  return true;
}

std::vector<Result<SpawnedProcess>> Spawner::finish() {
  while (!births_.empty()) finish_first();
  failed_ = false;
  return std::exchange(started_, {});
}

void Spawner::finish_first() {
  DDPRUN_ASSERT(!births_.empty() && births_.size() <= kAtOnceMax);
  Result<SpawnedProcess> process = births_.front().finish();
  births_.pop_front();
  if (failed_) {  // It was begun before that was known.
    if (process) kill_and_reap(process->pid);
    return;
  }
  failed_ = process.has_error();
  started_.push_back(std::move(process));
}

}  // namespace ddprun::agent
