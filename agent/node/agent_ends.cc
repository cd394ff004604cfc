// The part of Agent that reports: how workers ended and why, where the time of its places went, and
// the account of the run at its end.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <utility>

#include "agent/health/death_evidence.h"
#include "agent/health/fault.h"
#include "agent/node/agent.h"
#include "agent/node/verdict_file.h"
#include "agent/output/console.h"
#include "agent/output/last_words.h"
#include "agent/process/proc_file.h"
#include "agent/window/window.h"
#include "common/assert.h"
#include "common/bundle.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/user_file.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kLastWordsWait = 10ms;  // For what a dead worker still has in its pipe.
constexpr auto kGpuWait = 2s;          // NVML answers in a fraction of it, if it does.
constexpr auto kQueryBeforeStop = 1s;  // Most answer within milliseconds.

}  // namespace

// Every end is reported at once, so that the order of the reports is that of the exits, even if a
// process still holds a pipe. The last words of a failed worker may follow.
void Agent::worker_exited(WorkerDeath death, TimePoint noticed) {
  links_.read_rest(death.local_rank);
  forget_worker(death.local_rank);
  if (death.local_rank == 0) imports_.ended(death.succeeded());
  ledger_.ended(death.local_rank, death.succeeded(), std::chrono::steady_clock::now());
  if (supervisor_.living() == 0) return;  // It is not waited for.
  if (launcher_.is_gone()) return;        // The keeper has killed it: no failure of the worker.
  DDPRUN_ASSERT(places_.contains(death.local_rank) && !awaiting_output_.contains(death.local_rank));
  death.rank = rank_of(death.local_rank);
  death.host = options_.offer.host;
  const auto stop_state = stop_states_.find(death.local_rank);
  const StopState seen = stop_state == stop_states_.end() ? StopState() : stop_state->second;
  death.stopped_by_us = (stop_began_ || seen.killed) && !seen.exiting && !seen.waited;
  const bool is_its_doing = !progress_.reason(death.local_rank).empty() ||
                            (death.signal == SIGKILL && !oom_watch_.evidence(death.pid).empty());
  add_work(progress_.fate(death.local_rank), is_its_doing, death);
  const bool has_all_output = output_.drained(death.local_rank) && !needs_memory_report(death);
  if (death.succeeded() || death.stopped_by_us || has_all_output) {
    explain(death);
    return dispatch(WorkerEnded{std::move(death), /*output_follows=*/false, noticed});
  }
  auto& awaiting =
      awaiting_output_
          .try_emplace(death.local_rank, AwaitingOutput{death, boost::asio::steady_timer(loop_)})
          .first->second;
  awaiting.patience.expires_after(kLastWordsWait);
  awaiting.patience.async_wait(
      [this, local_rank = death.local_rank](const boost::system::error_code& ec) {
        if (!ec) last_output_arrived(local_rank);
      });
  dispatch(WorkerEnded{preliminary(std::move(death)), /*output_follows=*/true, noticed});
}

void Agent::complete_death(int local_rank) {
  auto awaiting = awaiting_output_.extract(local_rank);
  if (awaiting.empty()) return;
  WorkerDeath death = std::move(awaiting.mapped().death);
  explain(death);
  dispatch(LastOutput{std::move(death)});
}

// If CUDA refused memory to the worker, NVML is queried for the processes that hold it.
void Agent::last_output_arrived(int local_rank) {
  const auto found = awaiting_output_.find(local_rank);
  if (found == awaiting_output_.end() || found->second.inquiry) return;
  AwaitingOutput& awaiting = found->second;
  if (!needs_memory_report(awaiting.death)) return complete_death(local_rank);
  awaiting.patience.cancel();
  awaiting.inquiry = std::make_unique<GpuInquiry>(
      loop_, memory_question(awaiting.death), kGpuWait, [this, local_rank](std::string evidence) {
        const auto waiting = awaiting_output_.find(local_rank);
        DDPRUN_ASSERT(waiting != awaiting_output_.end());
        waiting->second.death.evidence = std::move(evidence);
        complete_death(local_rank);
      });
}

bool Agent::needs_memory_report(const WorkerDeath& death) const {
  return has_nvml() &&
         classify(death, output_of(death.local_rank), /*oom_killed=*/false) == Fault::kGpuMemory;
}

GpuQuestion Agent::memory_question(const WorkerDeath& death) const {
  const std::string_view visible = find_variable(environment_, "CUDA_VISIBLE_DEVICES");
  const int ordinal =
      options_.virtual_local_rank ? death.local_rank : gpu_in(output_of(death.local_rank));
  GpuQuestion question{.gpu = gpu_at(ordinal, visible), .pid = death.pid};
  for (const auto& [local_rank, pid] : processes_.pids()) question.ranks[pid] = rank_of(local_rank);
  return question;
}

// What is known from its page before its last output arrives: if it had lost a peer, that decides
// how others stop; if it computed wrong, whether its node goes on.
WorkerDeath Agent::preliminary(WorkerDeath death) const {
  const WorkerFate fate = progress_.fate(death.local_rank);
  WorkerDeath judged = death;
  judged.fault = classify(death, "", /*oom_killed=*/false);
  add_fate(fate, judged);
  death.kept_steps = fate.kept_steps;
  if (judged.fault != Fault::kPeerLost && judged.fault != Fault::kWrongResult) return death;
  death.fault = judged.fault;
  death.blames = judged.blames;
  return death;
}

// Adds all that shows why the worker ended, and how far it had come.
void Agent::explain(WorkerDeath& death) const {
  DDPRUN_ASSERT(death.fault == Fault::kUnknown && death.detail.empty());
  const auto found = stop_states_.find(death.local_rank);
  const StopState stop_state = found == stop_states_.end() ? StopState() : found->second;
  death.was_failing = !death.succeeded() && death.stopped_by_us && stop_state.failing;
  if (!death.succeeded() && (!death.stopped_by_us || death.was_failing)) {
    judge(death, death.was_failing ? stop_state.words : output_of(death.local_rank));
  } else {
    death.evidence = stop_state.halted;
  }
  add_fate(progress_.fate(death.local_rank), death);
  add_stall(progress_.reason(death.local_rank), death);
  const bool is_silent = death.stopped_by_us && !death.succeeded();
  if (stop_state.left && is_silent && death.fault == Fault::kUnknown) {
    death.fault = Fault::kLeftEarly;
  }
}

// Finds why it ended from its status and its last words.
void Agent::judge(WorkerDeath& death, const std::string& words) const {
  DDPRUN_ASSERT(!death.succeeded());
  death.detail = words;
  const std::string killed = death.signal == SIGKILL ? oom_watch_.evidence(death.pid) : "";
  WorkerDeath without_us = death;  // What our signal made of it is not its fault.
  if (cut_short(death)) without_us.exit_code = 1, without_us.signal = 0;
  death.fault = classify(without_us, death.detail, !killed.empty());
  death.blames = rank_blamed(death.detail);
  if (death.fault != Fault::kGpuMemory) death.evidence = killed;
  gpu_log_.add_to(death);
  if (death.fault != Fault::kSignal || death.stopped_by_us) return;
  death.evidence = time_limit_over(death.signal);
  if (!death.evidence.empty()) death.fault = Fault::kTimeLimit;
}

std::string Agent::output_of(int local_rank) const {
  return last_words(output_.last_lines(local_rank),
                    logs_.error_file(restart_count_of(local_rank), local_rank));
}

// A stop begins. A worker that is exiting, or has already reported an exception, ends by itself,
// and may be the reason why others, which were faster, have lost a peer. A halted worker is what
// others have waited for, and has to go on in order to end.
void Agent::read_workers() {
  if (std::exchange(stop_began_, true)) return;
  for (const auto& [local_rank, pid] : processes_.pids()) {
    StopState& worker = stop_states_[local_rank];
    const ProcStat stat = read_proc_stat(pid);
    worker.exiting = stat.exiting;
    // Between two rounds a worker that keeps its process has no group.
    const auto place = places_.find(local_rank);
    const bool stays = place != places_.end() && place->second.ready;
    worker.left = !stays && progress_.has_left(local_rank);
    if (is_halted(stat.state) && !progress_.paused()) worker.halted = halted_text(stat.state);
    const std::string error_file = logs_.error_file(restart_count_of(local_rank), local_rank);
    const bool reported = !error_file.empty() && ::access(error_file.c_str(), F_OK) == 0;
    worker.failing = reported || ends_in_exception(output_.last_lines(local_rank));
    if (worker.failing) worker.words = output_of(local_rank);
  }
}

// If a rank has failed, the others report where they are before they are stopped.
void Agent::act(const SignalWorkers& order) {
  using Targets = SignalWorkers::Targets;
  if (order.targets == Targets::kThoseLeavers) return stop_leavers(order.signal);
  read_workers();
  for (const auto& [local_rank, pid] : processes_.pids()) {
    StopState& worker = stop_states_[local_rank];
    worker.waited = worker.left && order.targets == Targets::kAllButLeavers;
    if (worker.waited) log::info(name_of(local_rank) + " has left the job: waiting for its end");
  }
  ledger_.stopping(std::chrono::steady_clock::now());
  if (order.lost_rank >= 0) progress_.notify_loss(order.lost_rank, order.why);
  const int number = ++orders_;
  const bool queries = order.lost_rank >= 0 && order.signal != SIGKILL && !progress_.ended_stuck();
  if (!queries || options_.files.recorders.empty()) return signal_workers(order.signal);
  query_where(kQueryBeforeStop, [this, number, signal = order.signal](const std::string& where) {
    if (!where.empty() && !ending_) log::warning(where);
    if (number == orders_ && !ending_) signal_workers(signal);
  });
}

void Agent::signal_workers(int signal) {
  for (const auto& [local_rank, pid] : processes_.pids()) {
    StopState& worker = stop_states_[local_rank];
    if (signal == SIGKILL) worker.waited = false;
    if (!worker.waited) processes_.signal_worker(local_rank, signal);
  }
  if (signal != SIGKILL) wake_halted();
}

// They had time to end by themselves.
void Agent::stop_leavers(int signal) {
  for (auto& [local_rank, worker] : stop_states_) {
    if (std::exchange(worker.waited, false)) processes_.signal_worker(local_rank, signal);
  }
}

// By what PyTorch's flight recorder has of each; nothing of programs that do not use it.
void Agent::query_where(Duration limit, std::function<void(const std::string&)> done) {
  recorders_.query(places(), limit, [this, done](FlightRecorders::Answers answers) {
    FlightRecords records;
    std::string dumps;
    for (auto& [local_rank, record] : answers) {
      const int rank = rank_of(local_rank);
      if (rank < 0) continue;
      if (record && !logs_.dump_file(0, 0).empty()) {
        dumps = "; dumps: " + logs_.attempt_folder(restart_count_of(local_rank)) +
                "/*/flight_recorder.json";
      }
      records[rank] = std::move(record);
    }
    const std::string text = flight_text(records);
    done(text.empty() ? text : text + dumps);
  });
}

// A process that is halted does not act on a signal that it could catch.
void Agent::wake_halted() {
  for (const auto& [local_rank, pid] : processes_.pids()) {
    const char state = read_proc_stat(pid).state;
    if (is_halted(state)) processes_.signal_worker(local_rank, state == 'T' ? SIGCONT : SIGKILL);
  }
}

// Whether it was on the console a moment ago and need not be repeated.
bool Agent::just_shown(const WorkerDeath& death) const {
  constexpr std::uint64_t kNear = 10;  // Lines.
  if (!seat_ || seat_->group_world_size > 1 || death.detail.empty()) return false;
  const auto since = output_.shown_since(death.local_rank);
  if (!since || *since > kNear) return false;
  return death.detail == last_words(output_.last_lines(death.local_rank), /*error_file=*/"");
}

void Agent::watch_launcher() {
  if (options_.job.launcher_pid == 0) return;
  const auto watched = launcher_.start(options_.job.launcher_pid, [this] {
    processes_.kill_everything();
    if (complaint_.empty()) {
      complaint_ = "the launcher (pid " + std::to_string(options_.job.launcher_pid) +
                   ") was killed, and so was everything that it had started";
    }
    dispatch(LauncherDied{});
    end();
  });
  if (!watched) log::warning(to_string(watched.error()));
}

// Of the workers that compute: a run that is about to end or to begin learns nothing from it.
void Agent::start_chaos() {
  if (options_.chaos.mean == Duration::zero()) return;
  chaos_.candidates = [this] {
    std::vector<int> computing;
    for (const auto& [local_rank, pid] : processes_.pids()) {
      if (supervisor_.running() && rank_of(local_rank) >= 0) computing.push_back(local_rank);
    }
    return computing;
  };
  chaos_.on_kill = [this](int local_rank) {
    log::warning("--chaos kills " + name_of(local_rank));
    processes_.signal_worker(local_rank, SIGKILL);
  };
  log::warning("--chaos: on " + options_.offer.host + " a random worker is killed every " +
               seconds_text(std::chrono::duration_cast<Milliseconds>(options_.chaos.mean)) +
               " on average; DDPRUN_CHAOS_SEED=" + std::to_string(options_.chaos.seed) +
               " repeats it");
  chaos_.start();
}

// How the run ended, if that is not a failure: a line for terminals, or empty.
std::string Agent::closing_picture(const Exit& exit) const {
  using Kind = rendezvous::Verdict::Kind;
  const auto style = picture_style();
  if (!style) return "";
  if (stopped_by_ != 0 && exit.status != 0 &&
      (!exit.verdict || exit.verdict->kind == Kind::kInterrupted)) {
    const TimePoint now = std::chrono::steady_clock::now();
    return stopped_picture({.signal = stopped_by_,
                            .why = stopped_why_,
                            .after = now - options_.job.began,
                            .step = view_.status(standing(), now).step},
                           *style);
  }
  const bool well = exit.verdict && exit.verdict->kind == Kind::kSuccess && exit.status == 0;
  return well ? verdict_picture(*exit.verdict, options_.run_id, *style) : "";
}

void Agent::report_verdict(const Exit& exit) {
  const bool failed = exit.verdict && exit.verdict->kind != rendezvous::Verdict::Kind::kSuccess;
  const auto held = std::exchange(held_back_, std::nullopt);
  if (held && !(failed && exit.verdict->first_cause)) log_now(*held);
  if (!options_.reports_for_run) return;
  auto style = picture_style();
  if (const std::string closing = closing_picture(exit); !closing.empty()) {
    std::fputs(closing.c_str(), stderr);
  } else if (failed) {
    const auto& cause = exit.verdict->first_cause;
    const bool shown = cause && just_shown(*cause);
    if (style) {
      style->output_shown = shown;
      const std::string picture = verdict_picture(*exit.verdict, options_.run_id, *style);
      std::fputs(("\n" + picture).c_str(), stderr);
    } else {
      log::error(without_escapes(shown ? rendezvous::without_last_words(*exit.verdict)
                                       : exit.verdict->text));
    }
    const std::string hint = cause && options_.hint ? options_.hint(cause->detail) : "";
    if (!hint.empty()) log::info(hint);
  }
  if (exit.status == 0) {  // It was interrupted, and ended well all the same.
    for (const std::string& path : noted_) clear_user_file(path);
  }
  if (exit.status == 0 || options_.files.verdict.empty()) return;
  write_verdict_files(options_.files.verdict, verdict_or(exit.verdict, exit.status, complaint_),
                      options_.run_id);
}

// The signal has been passed on by now. Many come twice.
void Agent::note_interruption(int signal) {
  const bool known = !noted_.empty() || ending_;
  if (known || !options_.reports_for_run || options_.files.verdict.empty()) return;
  const auto& preempting = options_.supervision.preempt_signals;
  const bool is_preemption =
      std::find(preempting.begin(), preempting.end(), signal) != preempting.end();
  noted_ = agent::note_interruption(options_.files.verdict, signal,
                                    is_preemption ? kExitPreempted : exit_code_of_signal(signal),
                                    options_.run_id);
}

// The ledger of the places, and the account of the run at its end.

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
