#include "agent/process/roster.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>

namespace ddprun::agent {

Result<std::shared_ptr<WorkerRoster>> WorkerRoster::make(std::size_t workers) {
  const std::size_t size = 2 * workers;
  void* memory = ::mmap(nullptr, size * sizeof(RosterPlace), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno_failure("mapping the list of workers");
  return std::shared_ptr<WorkerRoster>(new WorkerRoster(new (memory) RosterPlace[size]{}, size));
}

WorkerRoster::~WorkerRoster() { ::munmap(places_, size_ * sizeof(RosterPlace)); }

RosterPlace* WorkerRoster::claim() {
  if (RosterPlace* const place = claim_free()) return place;
  for (RosterPlace& place : std::span(places_, size_)) {
    const bool empty = place.reaped && ::kill(-place.pid, 0) != 0 && errno == ESRCH;
    if (place.owner == ::getpid() && empty) release(&place);
  }
  return claim_free();
}

RosterPlace* WorkerRoster::claim_free() {
  const int own = ::getpid();
  for (RosterPlace& place : std::span(places_, size_)) {
    int free = 0;
    if (!place.owner.compare_exchange_strong(free, own)) continue;
    place.reaped = false;
    place.started_until = 0;
    return &place;
  }
  return nullptr;
}

void WorkerRoster::release(RosterPlace* place) {
  if (!place) return;
  place->pid = 0;
  place->owner = 0;
}

void WorkerRoster::born(RosterPlace* place, TickSpan started) {
  if (!place) return;
  place->started_from = started.from;
  place->started_until = started.until;
}

void WorkerRoster::reaped(int pid) {
  const int own = ::getpid();
  for (RosterPlace& place : std::span(places_, size_)) {
    if (place.pid == pid && place.owner == own) place.reaped = true;
  }
}

void WorkerRoster::forget(int owner) {
  for (RosterPlace& place : std::span(places_, size_)) {
    if (place.owner == owner) release(&place);
  }
}

std::vector<FamilyHead> WorkerRoster::heads() const {
  std::vector<FamilyHead> heads;
  for (const RosterPlace& place : std::span(places_, size_)) {
    if (place.pid == 0) continue;
    heads.push_back({place.pid, {place.started_from, place.started_until}, place.reaped});
  }
  return heads;
}

}  // namespace ddprun::agent
