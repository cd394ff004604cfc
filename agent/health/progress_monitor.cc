#include "agent/health/progress_monitor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/process/proc_file.h"
#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {

LateCounts& SyncLedger::late(int rank) {
  DDPRUN_ASSERT(unreported_);
  for (LateRank& one : unreported_->late) {
    if (one.rank == rank) return one.counts;
  }
  return unreported_->late.emplace_back(LateRank{.rank = rank}).counts;
}

void SyncLedger::see(int local_rank, int rank, const WorkerCounts& now) {
  DDPRUN_ASSERT(local_rank >= 0 && rank >= 0);
  WorkerCounts& before = seen_[local_rank];
  if (now == before) return;
  const WorkerCounts more = now.since(before);
  if (!unreported_) unreported_.emplace();
  unreported_->sums.add(more.sums, kMost);
  if (more.late != LateCounts()) late(rank).add(more.late, kMost);
  before = now;
}

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTraceTime = 5s;  // From SIGABRT to SIGKILL: for a backtrace, or a core file.

StallOptions options_for(const StallPolicy& policy) {
  StallOptions options;
  options.floor = policy.timeout;
  options.first = 10 * policy.timeout;
  options.early = 2 * policy.timeout;
  options.interval = std::clamp<Duration>(policy.timeout / 8, 20ms, 15s);
  return options;
}

}  // namespace

ProgressMonitor::ProgressMonitor(boost::asio::io_context& loop, StallPolicy policy)
    : policy_(policy), options_(options_for(policy)), watch_(options_), timer_(loop) {}

std::string ProgressMonitor::prepare(int local_rank) {
  if (policy_.on_stall == OnStall::kOff) return {};
  if (workers_.empty()) watch_.start_over();
  workers_.erase(local_rank);
  reasons_.erase(local_rank);
  fates_.erase(local_rank);
  auto file = ProgressFile::make(local_rank);
  if (!file) {
    log::debug(to_string(file.error()));
    return {};
  }
  const auto [it, added] = workers_.try_emplace(local_rank, Worker{.file = std::move(*file)});
  sync_.began(local_rank);
  return "DDPRUN_PROGRESS=" + it->second.file.path();
}

void ProgressMonitor::started(int local_rank, int rank, int pid) {
  const auto it = workers_.find(local_rank);
  if (it == workers_.end()) return;
  DDPRUN_ASSERT(rank >= -1 && pid > 0);
  it->second.rank = rank;
  it->second.pid = pid;
  it->second.seated = rank >= 0;
  if (!check_scheduled_) check_later();
}

// What it has counted until now it has counted under its former rank.
void ProgressMonitor::seated(int local_rank, int rank) {
  const auto it = workers_.find(local_rank);
  if (it == workers_.end()) return;
  DDPRUN_ASSERT(rank >= 0 && it->second.pid > 0);
  see_sync(local_rank, it->second);
  it->second.rank = rank;
  it->second.seated = true;
}

void ProgressMonitor::left(int local_rank) {
  const auto it = workers_.find(local_rank);
  if (it != workers_.end()) it->second.seated = false;
}

void ProgressMonitor::see_sync(int local_rank, Worker& worker) {
  const WorkerCounts counts = worker.file.sync();
  if (on_counts) on_counts(local_rank, counts);
  if (worker.rank >= 0) sync_.see(local_rank, worker.rank, counts);
}

void ProgressMonitor::exited(int local_rank) {
  const auto it = workers_.find(local_rank);
  if (it == workers_.end()) return;
  if (!it->second.reason.empty()) reasons_[local_rank] = it->second.reason;
  see_sync(local_rank, it->second);
  fates_[local_rank] = it->second.file.fate();
  workers_.erase(it);
  if (!workers_.empty()) return;
  timer_.cancel();
  check_scheduled_ = false;
}

void ProgressMonitor::notify_loss(int lost_rank, const std::string& why) {
  for (auto& [local_rank, worker] : workers_) worker.file.notify_loss(lost_rank, why);
}

bool ProgressMonitor::request_bundle(int local_rank) {
  const auto it = workers_.find(local_rank);
  return it != workers_.end() && it->second.file.request_bundle();
}

const std::optional<rendezvous::SyncIncrease>& ProgressMonitor::unreported_sync() {
  read_counts();
  return sync_.unreported();
}

void ProgressMonitor::read_counts() {
  for (auto& [local_rank, worker] : workers_) see_sync(local_rank, worker);
}

void ProgressMonitor::pause(bool paused) { paused_ = paused; }

std::string ProgressMonitor::reason(int local_rank) const {
  const auto it = reasons_.find(local_rank);
  return it == reasons_.end() ? "" : it->second;
}

WorkerFate ProgressMonitor::fate(int local_rank) const {
  const auto it = fates_.find(local_rank);
  return it == fates_.end() ? WorkerFate() : it->second;
}

bool ProgressMonitor::has_left(int local_rank) {
  const auto it = workers_.find(local_rank);
  if (it == workers_.end()) return false;
  const WorkerFate fate = it->second.file.fate();
  const bool no_victim =
      fate.failure == ProgressPage::kNone || fate.failure == ProgressPage::kAborted;
  return fate.left && no_victim;
}

void ProgressMonitor::check_later() {
  check_scheduled_ = true;
  timer_.expires_after(options_.interval);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || workers_.empty()) return;
    if (!paused_) check();
    check_later();
  });
}

void ProgressMonitor::check() {
  DDPRUN_ASSERT(!workers_.empty() && workers_.begin()->first >= 0);
  if (querying_) return;
  std::vector<ProgressSample> samples(static_cast<std::size_t>(workers_.rbegin()->first) + 1);
  for (auto& [local_rank, worker] : workers_) {
    if (!worker.seated) continue;  // No worker waits for it.
    samples[static_cast<std::size_t>(local_rank)] = worker.file.read();
  }
  kill_again();
  const StallWatch::Findings findings = watch_.check(samples, Clock::now());
  for (const Stall& stall : findings.going_on) {
    const auto it = workers_.find(stall.local_rank);
    if (it == workers_.end()) continue;
    log::info("rank " + std::to_string(it->second.rank) + " " + stall.what);
  }
  if (findings.stuck.empty() && !findings.waiting) return;
  std::map<int, int> pids;
  for (const auto& [local_rank, worker] : workers_) pids[local_rank] = worker.pid;
  if (!query_where) return found(findings, pids, "");
  querying_ = true;
  query_where([this, findings, pids](const std::string& where) {
    querying_ = false;
    found(findings, pids, where);
  });
}

// `pids`: of the workers that were checked; another process may have the place by now.
void ProgressMonitor::found(const StallWatch::Findings& findings, const std::map<int, int>& pids,
                            const std::string& where) {
  for (const Stall& stall : findings.stuck) {
    const auto it = workers_.find(stall.local_rank);
    const bool lives = it != workers_.end() && it->second.pid == pids.at(stall.local_rank);
    if (lives) found_stuck(stall, where);
  }
  if (findings.waiting) log::warning(*findings.waiting + (where.empty() ? "" : "; ") + where);
}

// A worker that is stopped, or sleeps in the kernel, needs other remedies than one that runs.
std::string ProgressMonitor::state_of(const Worker& worker) const {
  const char state = read_proc_stat(worker.pid).state;
  if (is_halted(state)) return halted_text(state);
  switch (state) {
    case 'D': return "it is in uninterruptible sleep: " + describe_process(worker.pid);
    case 'R': return "it is computing";
    case 'S': return "it sleeps";
    default: return "its state is unknown";
  }
}

void ProgressMonitor::found_stuck(const Stall& stall, const std::string& where) {
  Worker& worker = workers_.at(stall.local_rank);
  const std::string text =
      stall.what + "; " + state_of(worker) + (where.empty() ? "" : "; ") + where;
  log::warning("rank " + std::to_string(worker.rank) + " (local rank " +
               std::to_string(stall.local_rank) + ", pid " + std::to_string(worker.pid) + ") " +
               text);
  if (policy_.on_stall != OnStall::kKill) return;
  worker.reason = "ddprun ended it because it was stuck: it " + text;
  kill_again();
}

// First so that it can leave a trace of where it is, then for good.
void ProgressMonitor::kill_again() {
  for (auto& [local_rank, worker] : workers_) {
    if (worker.reason.empty()) continue;
    DDPRUN_ASSERT(policy_.on_stall == OnStall::kKill && worker.pid > 0 && on_kill);
    const TimePoint now = Clock::now();
    const bool runs = !is_halted(read_proc_stat(worker.pid).state);
    if (!worker.kill_at) worker.kill_at = runs ? now + kTraceTime : now;
    if (now >= *worker.kill_at) {
      on_kill(local_rank, SIGKILL);
    } else if (!std::exchange(worker.aborted, true)) {
      on_kill(local_rank, SIGABRT);
    }
  }
}

}  // namespace ddprun::agent
