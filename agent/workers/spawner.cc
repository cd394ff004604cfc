#include "agent/workers/spawner.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
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

Spawner::Spawner() : slots_(kAtOnceMax), round_{.slots = &slots_} {}

bool Spawner::add(WorkerSpec spec, WorkerEnds ends) {
  if (begun_ == 0) round_.ignored_signals = ignored_signals();
  if (starts_.size() == kAtOnceMax) finish_first();
  const int newest = std::max(ends.stdout_end.get(), ends.link_end.get());
  if (!slots_.has_room_after(newest)) {
    finish_all();
    slots_.make_room_after(newest);
  }
  if (failed_) return false;
  starts_.emplace_back(std::move(spec), std::move(ends), round_, begun_++);
  return true;
}

std::vector<Result<SpawnedProcess>> Spawner::finish() {
  finish_all();
  slots_.clear();
  begun_ = 0;
  failed_ = false;
  return std::exchange(started_, {});
}

Result<SpawnedProcess> Spawner::spawn(WorkerSpec spec) {
  DDPRUN_ASSERT(starts_.empty() && started_.empty());
  add(std::move(spec), {});
  return std::move(finish().front());
}

void Spawner::finish_all() {
  while (!starts_.empty()) finish_first();
}

void Spawner::finish_first() {
  DDPRUN_ASSERT(!starts_.empty() && starts_.size() <= kAtOnceMax);
  Result<SpawnedProcess> process = starts_.front().finish();
  starts_.pop_front();
  if (failed_) {  // It was begun before that was known.
    if (process) kill_and_reap(process->pid);
    return;
  }
  failed_ = process.has_error();
  started_.push_back(std::move(process));
}

}  // namespace ddprun::agent
