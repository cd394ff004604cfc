// The public classes of ddprun/elastic/job.h: they check the caller and pass calls on.

#include "ddprun/elastic/job.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/kept_state.h"
#include "worker_sdk/job/shard_plan.h"

namespace ddprun::elastic {

std::int64_t Step::number() const noexcept { return state_.number; }
bool Step::is_repeated() const noexcept { return state_.is_repeated; }
int Step::round() const noexcept { return state_.job.round(); }
ProcessGroup& Step::group() noexcept {
  state_.job.end_shard();
  return state_.job.group();
}
int Step::rank() const { return state_.job.group().rank(); }
int Step::world_size() const { return state_.job.group().world_size(); }

std::ranges::iota_view<int, int> Step::shards(int shards) const {
  return state_.job.shards(state_, shards,
                           [this](int shard) { return state_.job.weight(state_, shard, 1); });
}
std::ranges::iota_view<int, int> Step::shards(const GlobalBatches& batches) const {
  return state_.job.shards(state_, batches.shards(), [&](int shard) {
    return state_.job.weight(state_, shard,
                             static_cast<double>(batches.shard_size(number(), shard)));
  });
}
std::ranges::iota_view<int, int> Step::shards(std::span<const double> weights) const {
  return state_.job.shards(state_, static_cast<int>(weights.size()),
                           [&](int shard) { return weights[static_cast<std::size_t>(shard)]; });
}

bool Step::begin_shard(int shard, std::string_view content) {
  return state_.job.begin_shard(state_, shard, content);
}
bool Step::skips(int shard) const { return state_.job.skips(state_, shard); }
std::vector<Sample> Step::samples(const GlobalBatches& batches, int shard) {
  state_.job.require_round(state_);
  if (skips(shard)) return {};
  std::vector<Sample> result = batches.shard(number(), shard);
  begin_shard(shard, text_of(result));
  return result;
}

std::vector<int> Step::audits() const { return state_.job.audits(state_); }
bool Step::is_audited(int shard) const { return state_.job.is_audited(state_, shard); }
void Step::audit(int shard, std::uint64_t hash) { state_.job.audit(state_, shard, hash); }
void Step::capture(int shard, std::string_view why, std::uint64_t hash) {
  state_.job.capture(state_, shard, why, hash);
}

void Step::commit(const std::function<void()>& apply) { state_.job.commit(state_, apply); }
std::int32_t Step::vote() { return state_.job.vote(state_); }
void Step::voted(bool leave) { state_.voted = leave; }
GradientSums::Result Step::reduce(GradientSums& sums, std::span<const std::span<float>> gradients,
                                  const GradientSums::Call& call) {
  return state_.job.reduce(state_, sums, gradients, call);
}

Job::Job(JobOptions options) : inside_(std::make_unique<JobInside>(std::move(options))) {}
Job::~Job() = default;

Job& Job::keep(std::string name, Buffer array) {
  inside_->require_usable("Job::keep");
  inside_->kept().add({.name = std::move(name), .array = array});
  return *this;
}

Job& Job::keep(std::string name, Save save, Load load) {
  inside_->require_usable("Job::keep");
  if (!save || !load) inside_->refuse("Job::keep", "\"" + name + "\" needs two functions");
  inside_->kept().add({.name = std::move(name), .save = std::move(save), .load = std::move(load)});
  return *this;
}

Sharded& Job::keep_sharded(std::string name, ShardedOptions options) {
  inside_->require_usable("Job::keep_sharded");
  return inside_->keep_sharded(std::move(name), std::move(options));
}

void Job::resume(std::int64_t step) {
  inside_->require_usable("Job::resume");
  inside_->resume(step);
}

Job& Job::between(std::int64_t every, Between body) {
  inside_->require_usable("Job::between");
  inside_->add_between(every, std::move(body));
  return *this;
}

void Job::run(std::int64_t steps, const Body& body) {
  inside_->require_usable("Job::run");
  inside_->run(steps, body);
}

std::int64_t Job::committed() const noexcept { return inside_->committed(); }
int Job::rank() const noexcept { return inside_->rank(); }
int Job::world_size() const noexcept { return inside_->world_size(); }
const JobCounters& Job::counters() const noexcept { return inside_->counters(); }

// The loop of a job: which work is next, and the commit that ends a step.

using worker_sdk::Clock;
using worker_sdk::GroupInside;

namespace {

// While it lives, the job is in run().
class Running {
 public:
  Running(JobInside& job, bool& flag) : job_(job), flag_(flag) {
    flag_ = true;
    job_.capture_crashes(true);
  }
  ~Running() {
    job_.capture_crashes(false);
    flag_ = false;
  }
  Running(const Running&) = delete;

 private:
  JobInside& job_;
  bool& flag_;
};

// While it lives, this thread is in `apply`: whatever is communicated there would be lost, or make
// the others wait, if a rank died at that time.
class Applying {
 public:
  Applying() {
    GroupInside::refusal =
        "it was called by the function that commit() calls, which communicates with nobody: "
        "communicate before commit(), or in Job::between()";
  }
  ~Applying() { GroupInside::refusal = nullptr; }
  Applying(const Applying&) = delete;
};

}  // namespace

void JobInside::run(std::int64_t steps, const Job::Body& body) {
  if (!body) refuse("Job::run", "there is no body");
  require_steps(steps);
  const Running here(*this, is_running_);
  if (is_walking()) return walk(steps, body);
  if (replay_ && replay_->bundle.step < steps) replay(body);
  if (replay_) {  // The step is one of a later run().
    standing_.committed = std::max(committed(), steps);
    return;
  }
  const bool others_go_on = standing_.closed < standing_.target && committed() <= standing_.target;
  if (!others_go_on) standing_.target = std::max(standing_.target, steps);
  if (last_commit_ == Clock::time_point()) last_commit_ = Clock::now();
  for (;;) {
    try {
      if (link_) link_->require_sound();
      runs_again_ = false;
      if (is_over()) leave();
      if (is_settled_) require_whole();
      if (!is_settled_) enter();
      if (work(steps, body)) return note_nothing_to_do(steps);
      if (leaving_ && committed() < steps) {
        spread_shards();
        leave();
      }
    } catch (...) {
      if (!runs_again_) leave_or_throw();
    }
  }
}

void JobInside::require_steps(std::int64_t steps) const {
  if (steps < 0) {
    refuse("Job::run",
           "the number of steps is " + std::to_string(steps) + "; it must not be negative");
  }
}

// Warns, as a program that resumes from the checkpoint of a longer run would otherwise end
// silently. Not in a process that joins the others in a later run(), as it has resumed no such
// checkpoint, nor after a step has run: one run() of several may be over.
void JobInside::note_nothing_to_do(std::int64_t steps) const {
  if (origin_ <= steps || is_restored_ || begun_ >= 0 || group_->rank() != 0) return;
  std::fprintf(stderr,
               "ddprun: warning: rank 0: Job::run(%" PRId64
               ") runs no step: the checkpoint that was given to resume() is of %" PRId64
               " committed steps\n",
               steps, origin_);
}

// The others have committed the step that has failed here: it must not run again beside them.
void JobInside::require_whole() const {
  if (standing_.condition == Condition::kWhole) return;
  throw Error(ErrorKind::corrupt, {.rank = group_->rank(), .operation = "Job::run"},
              "the kept state is torn: commit() of step " + std::to_string(committed()) +
                  " has failed half-way, in an earlier run() of the same round");
}

bool JobInside::work(std::int64_t steps, const Job::Body& body) {
  if (visit_boundary() || meet_at_end()) return false;
  if (committed() >= steps) return true;
  run_step(body);
  return false;
}

// A rank that returns from run() can no longer be a source of state, so all must have committed the
// last step by then. A new rank meets the others at the end of their run(), as its own first run()
// ends earlier.
bool JobInside::meet_at_end() {
  if (committed() != standing_.target || standing_.closed >= standing_.target) return false;
  if (is_elastic()) group_->barrier();
  standing_.closed = standing_.target;
  return true;
}

// The work between the last step and the next. True: there was some.
bool JobInside::visit_boundary() {
  if (standing_.visited == committed()) return false;
  const std::int64_t every = options_.check_every;
  bool any = every > 0 && committed() % every == 0;
  if (any) kept_.require_equal(*group_, committed());
  for (const Between& between : betweens_) {
    if (committed() % between.every != 0) continue;
    any = true;
    between.body(*group_);
  }
  standing_.visited = committed();
  return save_in_memory() || any;
}

void JobInside::run_step(const Job::Body& body) {
  const auto progress = GroupInside::progress(*group_);
  progress->begin_steps();
  capture_on_request();
  write_regular_bundle();
  const auto began = Clock::now();
  begin_shards();
  Step::State state{.job = *this, .number = committed(), .is_repeated = begun_ == committed()};
  state.began = began;
  state.spent_before = GroupInside::spent;
  begun_ = committed();
  Step step(state);
  in_body_ = &state;
  try {
    body(step);
    in_body_ = nullptr;
  } catch (...) {
    in_body_ = nullptr;
    capture_exception(state);
    throw;
  }
  if (state.is_committed) memory_.step_took(last_commit_ - began);
  if (state.is_committed) progress->count_step(last_commit_ - began);
  if (state.is_committed) progress->stepped(last_commit_);
  if (state.is_committed) return progress->saved(last_commit_);
  if (has_lost_round() || runs_again_) {
    throw Error(ErrorKind::membership_changed, {.rank = group_->rank(), .operation = "Job::run"},
                "an operation of step " + std::to_string(state.number) + " has failed");
  }
  refuse("Job::run",
         "the body has returned without commit() of step " + std::to_string(state.number));
}

std::int32_t JobInside::vote(Step::State& step) const {
  if (!step.vote) step.vote = link_ && link_->wants_change(round()) ? 1 : 0;
  return *step.vote;
}

std::ranges::iota_view<int, int> JobInside::shards(Step::State& step, int shards,
                                                   const WeightOf& weight_of) {
  if (step.shards == 0) {
    if (follows_speed()) division_.use(shards);
    step.shards = shards;
    if (!replay_ && shards > 0) step.auditors = auditors_of(step);
  }
  if (replay_) return shards_of_replay(step, shards);
  const auto mine = division_.of(group_->rank(), shards);
  if (shards != step.shards) return mine;
  step.work = step.audit_work = 0;
  for (const int shard : mine) step.work += skips(step, shard) ? 0 : weight_of(shard);
  for (const int shard : audits(step)) step.audit_work += weight_of(shard);
  return mine;
}

// For the run's reports: this rank's shards, and by rank 0 what it has won that they have moved.
void JobInside::count_shards(const Step::State& step) {
  const auto mine = division_.of(group_->rank(), step.shards).size();
  WorkerCounts counts{.sums = {{"shards", static_cast<std::uint64_t>(mine)}}, .late = {}};
  if (group_->rank() == 0 && mine > 0) {
    const double work = step.work / static_cast<double>(mine);
    counts.sums["won_ns"] = static_cast<std::uint64_t>(
        std::clamp(static_cast<double>(division_.won()) / 1000 * work, 0.0, 1e18));
  }
  GroupInside::progress(*group_)->count(counts);
}

// Only now, as a step that is not committed leaves no trace.
void JobInside::advance_division(const Step::State& step) {
  if (step.shards > 0) count_shards(step);
  if (step.measured.empty()) return;
  const std::int64_t moved = division_.moves();
  division_.advance(step.measured);
  const std::int64_t more = division_.moves() - moved;
  counters_.moved_shards += more;
  if (more > 0 && group_->rank() == 0) {
    GroupInside::progress(*group_)->count(
        {.sums = {{"moved_shards", static_cast<std::uint64_t>(more)}}, .late = {}});
  }
  standing_.pace = division_.pace(group_->rank());
}

bool JobInside::skips(const Step::State& step, int shard) const {
  if (replay_) return has_piece(replay_->bundle.skip, piece_of(step.number, shard));
  return seat_ && has_piece(seat_->place.skip, piece_of(step.number, shard));
}

void JobInside::require_round(const Step::State& step) {
  if (!is_over()) return;
  is_cut_ = true;
  const auto word = seat_->fence->word();
  const std::string why = word && !word->why.empty() ? ": " + word->why : "";
  throw Error(ErrorKind::membership_changed,
              {.rank = group_->rank(), .operation = "Step::begin_shard"},
              "the round is over" + why + "; step " + std::to_string(step.number) + " runs again");
}

bool JobInside::begin_shard(const Step::State& step, int shard, std::string_view content) {
  require_round(step);
  if (skips(step, shard)) return false;
  std::string text = piece_of(step.number, shard);
  if (!content.empty()) text.append(": ").append(content);
  GroupInside::progress(*group_)->note_work(text, options_.skip_poison);
  has_shard_ = true;
  shard_ = shard;
  work_ = std::move(text);
  if (is_walking()) note_walk({.shard = shard, .work = work_});
  return true;
}

void JobInside::end_shard() {
  if (!std::exchange(has_shard_, false)) return;
  GroupInside::progress(*group_)->note_work("", false);
  if (is_walking()) note_walk({.state = Walk::State::kComputes});
}

// What a rank has measured is the time since the body began, without that in calls of the group,
// where it waits for the others. The division of the others counts as the same if the sum of all
// fingerprints is what it is for equal ones.
std::vector<std::int64_t> JobInside::ballot(Step::State& step) {
  std::vector<std::int64_t> numbers = {step.voted ? (*step.voted ? 1 : 0) : vote(step)};
  const auto worked = Clock::now() - step.began - (GroupInside::spent - step.spent_before);
  if (is_auditing()) numbers.push_back(static_cast<std::int64_t>(discrepancy(step)));
  if (!follows_speed()) return numbers;
  numbers.push_back(static_cast<std::int64_t>(division_.fingerprint()));
  const std::size_t paces = numbers.size();
  numbers.resize(paces + static_cast<std::size_t>(group_->world_size()));
  numbers[paces + static_cast<std::size_t>(group_->rank())] =
      pace_of(std::chrono::nanoseconds(worked).count(), step.work + step.audit_work);
  return numbers;
}

void JobInside::count(Step::State& step, std::span<const std::int64_t> sums) {
  const auto next = [&] {
    const std::int64_t number = sums.front();
    sums = sums.subspan(1);
    return number;
  };
  step.voted = next() != 0;
  step.is_counted = true;
  const std::uint64_t discrepancy = is_auditing() ? static_cast<std::uint64_t>(next()) : 0;
  if (follows_speed()) {
    const auto ranks = static_cast<std::uint64_t>(group_->world_size());
    if (static_cast<std::uint64_t>(next()) != ranks * division_.fingerprint()) {
      throw Error(
          ErrorKind::mismatch, {.rank = group_->rank(), .operation = "Step::commit"},
          "the ranks have divided the shards of step " + std::to_string(step.number) +
              " differently: all ranks must call Step::shards() in each step, with the same "
              "number of shards first, or set JobOptions::even_shards");
    }
    step.measured.assign(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(ranks));
  }
  settle_discrepancy(step, discrepancy);
}

GradientSums::Result JobInside::reduce(Step::State& step, GradientSums& sums,
                                       std::span<const std::span<float>> gradients,
                                       const GradientSums::Call& call) {
  end_shard();
  write_captured(step);
  if (ends_at_reduction(step)) end_replay_here();
  std::vector<std::int64_t> numbers = ballot(step);
  const std::size_t mine = numbers.size();
  numbers.insert(numbers.end(), call.notes.begin(), call.notes.end());
  GradientSums::Call whole = call;
  whole.notes = numbers;
  GradientSums::Result result = sums.reduce(*group_, gradients, whole);
  if (result.kind == GradientSums::Kind::over) {
    units_raised_at_ = step.number;
    step.began = Clock::now();
    step.spent_before = GroupInside::spent;
  } else {
    count(step, result.notes);
  }
  step.is_finite = result.kind != GradientSums::Kind::not_finite;
  result.notes.erase(result.notes.begin(),
                     result.notes.begin() + static_cast<std::ptrdiff_t>(mine));
  return result;
}

bool JobInside::agree_to_leave(Step::State& step) {
  if (!is_elastic()) return false;
  const bool needs_ballot = is_auditing() && !step.is_counted;
  if (step.voted && sharded_.empty() && !needs_ballot) return *step.voted;
  std::vector<std::int64_t> numbers = ballot(step);
  if (group_->world_size() > 1) {
    group_->all_reduce(buffer(numbers.data(), numbers.size()), ReduceOp::sum, {.on_host = true});
  }
  const bool has_measured = !step.measured.empty();
  const std::vector<Pace> measured = step.measured;
  count(step, numbers);
  if (has_measured) step.measured = measured;
  return *step.voted;
}

void JobInside::commit(Step::State& step, const std::function<void()>& apply) {
  if (GroupInside::refusal) {
    refuse("Step::commit",
           "it was called by the function that commit() calls; one step has one commit()");
  }
  if (step.is_committed) refuse("Step::commit", "this step is committed already");
  if (has_lost_round() || runs_again_) {
    throw Error(ErrorKind::membership_changed,
                {.rank = group_->rank(), .operation = "Step::commit"},
                "an operation of this step has failed, so it is not committed; let errors of "
                "step.group() leave the body");
  }
  end_shard();
  write_captured(step);
  if (replay_ && !step.is_finite) {  // Unless the program has found more.
    capture(step, -1, "the sum of the gradients is not finite", 0);
  }
  if (ends_at_commit(step)) end_replay_here();
  refresh_shards();
  const bool leaving = agree_to_leave(step);
  pass("commit");
  standing_.condition = Condition::kTorn;
  if (apply) {
    const Applying here;
    apply();
  }
  advance_shards();
  standing_.condition = Condition::kWhole;
  ++standing_.committed;
  standing_.made = round();
  advance_division(step);
  step.is_committed = true;
  leaving_ = leaving;
  last_commit_ = Clock::now();
  note_committed();
  pass("committed");
}

}  // namespace ddprun::elastic
