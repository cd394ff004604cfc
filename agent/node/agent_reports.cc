// The part of Agent that keeps the ledger of its places, and the account of the run at its end.

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "agent/node/agent.h"
#include "agent/node/verdict_file.h"
#include "agent/output/console.h"
#include "agent/process/proc_file.h"
#include "agent/window/window.h"
#include "common/bundle.h"
#include "common/system/log.h"
#include "common/system/variable.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kAccountBytesMax = std::size_t{256} << 20;
constexpr int kPollsPerRun = 200;  // At the workers' pages, about.
constexpr int kSmallWorld = 64;
constexpr auto kLongRun = 10s;

void write(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::trunc);
  file << text << std::flush;
  if (!file) log::warning("the run's account cannot be written to " + path);
}

}  // namespace

void Agent::keep_ledger() {
  progress_.on_counts = [this](int local_rank, const WorkerCounts& counts) {
    ledger_.counted(local_rank, counts, Clock::now());
  };
  count_later();
}

// Often at first: the picture of a short run is to be as fine as that of a long one.
void Agent::count_later() {
  const Duration age = Clock::now() - options_.job.began;
  count_timer_.expires_after(std::clamp<Duration>(age / kPollsPerRun, 50ms, 30s));
  count_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || ending_) return;
    progress_.read_counts();
    count_later();
  });
}

// For the requested page, or the record of the run. With thousands of ranks a short run is not
// worth the time that its account takes.
bool Agent::wants_account() const {
  if (!seat_ || seat_->group_rank != 0) return false;
  const bool small = seat_->world_size <= kSmallWorld;
  const bool kept = options_.reports_for_run && !options_.files.ending.empty();
  return !options_.files.account.empty() ||
         (kept && (small || Clock::now() - options_.job.began >= kLongRun));
}

// What the ledger has, and the kernel's figures of the processes.
rendezvous::NodeTimes Agent::times(bool whole) const {
  static const auto kTicks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  static const auto kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  rendezvous::NodeTimes times = ledger_.times(whole, Clock::now());
  times.wants_account = wants_account();
  times.memory = memory_use();
  if (seat_ && seat_->group_rank == 0) times.command = options_.typed;
  const std::map<int, int> pids = processes_.pids();
  for (rendezvous::PlaceTimes& place : times.places) {
    const auto pid = pids.find(place.local_rank);
    if (pid == pids.end()) continue;
    const ProcStat stat = read_proc_stat(pid->second);
    place.ran = std::chrono::microseconds(static_cast<std::int64_t>(stat.ran * 1'000'000 / kTicks));
    place.resident = stat.resident * kPage;
  }
  return times;
}

void Agent::take_account(const rendezvous::Account& account) {
  if (account_whole_) account_.clear();  // This is a newer one.
  if (account_.size() + account.piece.size() <= kAccountBytesMax) account_ += account.piece;
  account_whole_ = !account.more;
  if (!account_whole_) return;
  account_due_ = false;
  end();
}

// The daemon answers a Leave with the account; workers may be gone before.
void Agent::await_account() {
  if (!account_due_) return end();
  account_timer_.expires_after(options_.supervision.leave_limit);
  account_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) end();
  });
}

// Once there is nothing left to wait for; before, it does nothing.
void Agent::end() {
  if (!last_) return;
  const Exit exit = *std::exchange(last_, std::nullopt);
  account_timer_.cancel();
  write_account(exit);
  leave_ending(exit);
  link_->close([this] { loop_.stop(); });
}

void Agent::write_account(const Exit& exit) const {
  if (!account_.empty()) write(options_.files.account, account_);
  if (!exit.verdict || !exit.verdict->ledger) return;
  const LedgerTotals& ledger = *exit.verdict->ledger;
  write(options_.files.ledger, std::to_string(ledger.wall.count()) + " " + to_text(ledger.parts) +
                                   " " + to_text(ledger.starts) + " " + to_text(ledger.shards));
}

// For a person at a terminal that can show it. Otherwise the paragraph is printed.
std::optional<PictureStyle> Agent::picture_style() const {
  const TerminalFacts terminal = read_terminal();
  const bool text = options_.output.lines.format == LineFormat::kText;
  if (!terminal.can_move || !terminal.colour || !terminal.utf8 || !text) return std::nullopt;
  return PictureStyle{.columns = terminal.columns};
}

// The part of Agent for those that watch the run on this machine, while it goes on (ddprunctl top,
// logs, stacks, and the line on the terminal) and afterwards (ddprunctl history).

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFreshEnough = std::chrono::seconds(1);

}  // namespace

std::map<int, int> Agent::ranks() const {
  std::map<int, int> ranks;
  for (const auto& [local_rank, place] : places_) ranks[local_rank] = rank_of(local_rank);
  return ranks;
}

NodeStanding Agent::standing() const {
  return {.offer = options_.offer, .seat = seat_, .running = supervisor_.running()};
}

// All have the same state, and each computes all shards in a replay.
Result<int> Agent::request_bundle() {
  if (environment_variable(kBundlesVariable).empty()) {
    return Failure{Errc::kNotFound, "it was started without --bundle-folder"};
  }
  for (const auto& [local_rank, place] : places_) {
    if (place.seated && progress_.request_bundle(local_rank)) return place.facts.rank;
  }
  return Failure{Errc::kNotFound, "no rank on this machine has begun a step of an elastic job"};
}

void Agent::open_window() {
  if (options_.files.window.empty()) return;
  window_.workers = [this] {
    return NodeWindow::Workers{.run_id = options_.run_id,
                               .host = options_.offer.host,
                               .world_size = seat_ ? seat_->world_size : 0,
                               .pids = processes_.pids(),
                               .ranks = ranks()};
  };
  window_.refresh = [this] {
    if (Clock::now() - sync_reported_ < kFreshEnough || ending_) return;
    progress_.read_counts();
    send_heartbeat(/*with_counts=*/true);
  };
  window_.capture = [this] { return request_bundle(); };
  window_.runs = [this]() -> rendezvous::DaemonStatus {
    if (auto all = link_->watched()) return *std::move(all);
    return {{view_.run(standing(), Clock::now())}};
  };
  window_.open(options_.files.window);
}

void Agent::leave_ending(const Exit& exit) const {
  if (options_.files.ending.empty()) return;
  std::optional<RunEnding> of_run;
  if (options_.reports_for_run) {
    const bool dismissed = !exit.verdict && exit.status == 0;  // Drained: the run goes on.
    rendezvous::Verdict verdict = verdict_or(exit.verdict, exit.status, complaint_);
    if (dismissed) verdict.kind = rendezvous::Verdict::Kind::kSuccess;
    of_run = {options_.run_id, std::move(verdict), seat_, account_};
  }
  write_ending(options_.files.ending, output_, ranks(), of_run);
}

void Agent::keep_status() {
  status_line_.may_show = [this] {
    const bool runs = supervisor_.running() && !waiting_.active() && !progress_.paused();
    return runs && has_foreground(options_.job.launcher_pid);
  };
  status_line_.facts = [this] {
    const TimePoint now = Clock::now();
    progress_.read_counts();
    view_.report(ledger_.times(/*whole=*/false, now), now);
    return view_.status(standing(), now);
  };
  const bool wanted = options_.status_line && options_.reports_for_run &&
                      options_.output.lines.format == LineFormat::kText;
  if (wanted) status_line_.start();
}

}  // namespace ddprun::agent
