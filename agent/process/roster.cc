#include "agent/process/roster.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <span>

#include "agent/process/proc_file.h"
#include "common/system/held_process.h"
#include "common/time.h"

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

void WorkerRoster::note_start(RosterPlace* place, TickSpan started) {
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

void WorkerRoster::forget(int owner, int but) {
  for (RosterPlace& place : std::span(places_, size_)) {
    const bool lives_on = but != 0 && place.pid == but && !place.reaped;
    if (place.owner == owner && !lives_on) release(&place);
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

namespace {

constexpr int kFamilyDepthMax = 32;     // Deeper ones come up to us as their ancestors die.
constexpr std::size_t kWaitedMax = 64;  // Descriptors used at a time while waiting.

std::vector<int> children_by_scan(int pid) {
  std::vector<int> children;
  for (const int other : numbered_entries("/proc")) {
    if (read_proc_stat(other).parent == pid) children.push_back(other);
  }
  return children;
}

// SIGKILLs everything below `pid`. Each process is held by a descriptor and its parent checked
// afterwards, so that a process id that was taken over by a stranger is never hit.
void kill_below(int pid, const UniqueFd& process, int depth) {
  if (depth == kFamilyDepthMax) return;
  for (const int child : children_of(pid)) {
    const UniqueFd child_fd = hold_process(child);
    const bool is_child =
        child_fd && read_proc_stat(child).parent == pid && send_signal(process, 0);
    if (!is_child) continue;
    kill_below(child, child_fd, depth + 1);
    send_signal(child_fd, SIGKILL);
  }
}

// Waits until one of `pids`, children of ours, has ended, or the time is up.
void wait_for_any(const std::vector<int>& pids, TimePoint until) {
  std::vector<UniqueFd> held;
  std::vector<pollfd> polls;
  for (const int pid : pids) {
    if (held.size() == kWaitedMax) break;
    held.push_back(open_pidfd(pid));
    if (held.back()) polls.push_back({held.back().get(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<Milliseconds>(until - std::chrono::steady_clock::now());
  // With no descriptor to spare there is nothing to wait on: check again in a moment.
  const auto wait = polls.empty() ? std::min(left, Milliseconds(1)) : left;
  if (wait.count() > 0) ::poll(polls.data(), polls.size(), static_cast<int>(wait.count()));
}

}  // namespace

std::vector<int> children_of(int pid) {
  static const bool listed = ::access("/proc/thread-self/children", F_OK) == 0;
  if (!listed) return children_by_scan(pid);  // A kernel without CONFIG_PROC_CHILDREN.
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::vector<int> children;
  for (const int thread : numbered_entries(tasks)) {
    const std::string text = read_proc_file(tasks + "/" + std::to_string(thread) + "/children");
    const char* at = text.c_str();
    for (char* end = nullptr;; at = end) {
      const long child = std::strtol(at, &end, 10);
      if (end == at) break;
      children.push_back(static_cast<int>(child));
    }
  }
  return children;
}

Result<void> become_sub_reaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L) == 0) return {};
  return refused_call("what workers leave behind may outlive them", "prctl(PR_SET_CHILD_SUBREAPER)",
                      "Linux 3.4");
}

void kill_descendants(int pid) {
  if (const UniqueFd process = hold_process(pid)) kill_below(pid, process, 0);
}

std::vector<int> children_of_self() { return children_of(::getpid()); }

StrayReport kill_unknown_children(const std::function<bool(int)>& is_known,
                                  std::chrono::milliseconds limit) {
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  StrayReport report;
  for (;;) {
    std::vector<int> strays = children_of_self();
    strays.erase(std::remove_if(strays.begin(), strays.end(), is_known), strays.end());
    // An unreaped child keeps its number, so what is found here cannot be a stranger.
    for (const int pid : strays) {
      kill_descendants(pid);
      ::kill(pid, SIGKILL);
    }
    if (strays.empty()) return report;
    wait_for_any(strays, until);
    for (const int pid : strays) report.killed += ::waitpid(pid, nullptr, WNOHANG) == pid;
    if (std::chrono::steady_clock::now() < until) continue;
    for (const int pid : children_of_self()) {
      if (!is_known(pid)) report.stuck.push_back(describe_process(pid));
    }
    return report;
  }
}

int reap_unknown_children(const std::function<bool(int)>& is_known) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) return 0;
    if (is_known(info.si_pid)) return info.si_pid;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace ddprun::agent
