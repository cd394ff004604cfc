// How a job enters a round and leaves it.

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <utility>

#include "common/assert.h"
#include "common/system/own_process.h"
#include "common/text/figures.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/kept_state.h"

namespace ddprun::elastic {

using worker_sdk::Clock;
using worker_sdk::GroupInside;

namespace {

// How long an error of a lost peer waits until the agent reports the end of the round. A lost node
// is noticed within seconds; after this time the error is thrown like any other.
constexpr std::chrono::milliseconds kMessagePatience{60'000};
// The limit after a rank destroyed its Job before its work was done. If that process fails, the
// agent reports it at once; if it exits with 0, nothing is reported.
constexpr std::chrono::milliseconds kExitPatience{10'000};
constexpr std::chrono::milliseconds kPollInterval{1000};
// How long a rank of a round that is too small waits for its end: the others of the round must have
// made their Jobs, which may take as long as their start-up.
constexpr std::chrono::milliseconds kRanksPatience{600'000};

// A key in the round's store. The next round has another store.
constexpr const char* kLeftKey = "ddprun/a rank has left";

std::string ranks_text(int ranks) {
  return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

// Checks the options before the link is opened, as a process can open it only once.
JobOptions checked(JobOptions options) {
  const auto refuse_if = [](bool wrong, const char* text) {
    if (wrong) throw Error(ErrorKind::bad_argument, {.operation = "Job"}, text);
  };
  refuse_if(options.init.op_timeout.count() <= 0 || options.init.init_timeout.count() <= 0,
            "init_timeout and op_timeout must be positive");
  refuse_if(options.check_every < 0, "check_every must not be negative");
  refuse_if(options.min_world < 0, "min_world must not be negative");
  refuse_if(options.memory_every < -1, "memory_every is a number of steps, 0 or -1");
  refuse_if(options.audit > 100, "audit is a percentage, from 0 to 100");
  return options;
}

// Shards that are audited, per million.
std::int64_t per_million_of(const JobOptions& options) {
  if (options.audit >= 0) return std::llround(options.audit * (kMillion / 100));
  const char* text = std::getenv("DDPRUN_AUDIT");
  if (!text || !*text) return 0;
  const std::int64_t found = elastic::per_million_of(std::string(text));
  if (found >= 0) return found;
  throw Error(ErrorKind::bad_environment, {.operation = "Job"},
              std::string("DDPRUN_AUDIT is \"") + text + "\", not a percentage from 0 to 100");
}

std::int64_t bundle_every() {
  const std::string text = environment_variable(kBundleEveryVariable);
  if (text.empty()) return 0;
  const auto steps = as_number<std::int64_t>(text);
  if (steps > 0) return *steps;
  throw Error(ErrorKind::bad_environment, {.operation = "Job"},
              std::string(kBundleEveryVariable) + " is \"" + text + "\", not a number of steps");
}

std::vector<int> numbers_of_hosts(const ProcessGroup& group) {
  std::vector<int> numbers;
  std::map<std::string, int> known;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto next = static_cast<int>(known.size());
    numbers.push_back(known.try_emplace(group.host_of(rank), next).first->second);
  }
  return numbers;
}

bool may_be_a_lost_peer(ErrorKind kind) {
  return kind == ErrorKind::membership_changed || kind == ErrorKind::peer_lost ||
         kind == ErrorKind::unreachable || kind == ErrorKind::aborted;
}

}  // namespace

JobInside::JobInside(JobOptions options)
    : options_(checked(std::move(options))),
      replay_(replay_of_environment()),
      bundles_(environment_variable(kBundlesVariable)),
      bundle_every_(bundles_.empty() ? 0 : bundle_every()),
      link_(replay_ ? nullptr : worker_sdk::AgentLink::open(std::getenv(worker_link::kVariable))),
      per_million_(per_million_of(options_)),
      memory_(options_.memory_every) {
  if (link_) link_->send(worker_link::Ready{.min_world = options_.min_world});
}

// Marks the round as left, so that the others wait for less time than for a node that may be lost.
JobInside::~JobInside() {
  const bool is_unfinished = standing_.closed < standing_.target;
  if (!link_ || !seat_ || !group_ || !is_unfinished || is_over()) return;
  if (forks_ != worker_sdk::fork_count()) return;
  try {
    group_->store().set(kLeftKey, std::to_string(seat_->place.rank));
  } catch (const std::exception&) {  // The others wait for the full time.
  }
}

void JobInside::require_usable(const char* operation) const {
  if (forks_ != worker_sdk::fork_count()) {
    refuse(operation, "this process was forked off the one that made the Job, and is no rank");
  }
  if (is_running_) refuse(operation, "run() has not returned yet");
}

void JobInside::refuse(const char* operation, const std::string& text) const {
  throw Error(ErrorKind::bad_argument,
              {.rank = group_ ? group_->rank() : -1, .operation = operation}, text);
}

void JobInside::add_between(std::int64_t every, Job::Between body) {
  if (every <= 0 || !body) refuse("Job::between", "needs a positive number and a function");
  betweens_.push_back({.every = every, .body = std::move(body)});
}

void JobInside::resume(std::int64_t step) {
  const bool is_late = group_ && !is_lost_;
  if (step < 0 || is_late) refuse("Job::resume", "needs a step >= 0, before run()");
  is_lost_ = false;
  for (const auto& one : sharded_) one->state_->forget();
  standing_ = {.condition = Condition::kWhole, .committed = step, .visited = step};
  origin_ = step;
  note_committed();
}

// Reports to the agent, which must know what is lost if the last process with this state dies.
void JobInside::note_committed() {
  if (!link_) return;
  link_->set_committed(committed());
  if (group_) GroupInside::progress(*group_)->note_kept(committed());
}

// A process keeps its place on its node, even if processes before it are gone.
worker_sdk::Plan JobInside::plan_of_seat() const {
  const worker_link::Seated& place = seat_->place;
  worker_sdk::Variables variables = GroupInside::process_variables();
  variables["RANK"] = std::to_string(place.rank);
  variables["WORLD_SIZE"] = std::to_string(place.world_size);
  variables["GROUP_RANK"] = std::to_string(place.group_rank);
  variables["MASTER_ADDR"] = place.master_address;
  variables["MASTER_PORT"] = std::to_string(place.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(place.restart_count);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables.erase("LOCAL_RANK");
  variables.erase("LOCAL_WORLD_SIZE");
  InitOptions options = options_.init;
  options.init_method = "env://";
  options.rank = options.world_size = -1;
  worker_sdk::Plan plan = worker_sdk::read_environment(variables, options);
  plan.identity.local_rank = place.local_rank;
  plan.identity.local_world_size = place.local_world_size;
  plan.local_rank_known = true;
  plan.prefix = "/round " + std::to_string(place.round);
  return plan;
}

// The launcher knows from Ready how many ranks the job needs: it ends a round that has begun with
// fewer, and begins the next one with enough.
void JobInside::await_seat() {
  for (;;) {
    seat_ = link_->next_seat(left_round_);
    const int ranks = seat_->place.world_size;
    if (ranks >= options_.min_world) return;
    if (!link_->await_fence(*seat_, kRanksPatience)) {
      throw Error(ErrorKind::unreachable, {.rank = seat_->place.rank, .operation = "Job::run"},
                  "this round has " + ranks_text(ranks) + ", the job needs at least " +
                      std::to_string(options_.min_world) +
                      " (min_world), and the launcher has not ended the round");
    }
    leave();
  }
}

void JobInside::join() {
  if (!link_) {
    group_ = ProcessGroup::init(options_.init);
    const int ranks = group_->world_size();
    if (ranks >= options_.min_world) return;
    group_.reset();
    refuse("Job", "the job has " + ranks_text(ranks) + " and needs at least " +
                      std::to_string(options_.min_world) + " (min_world)");
  }
  await_seat();
  pass("seated");
  group_ = GroupInside::join(plan_of_seat(), options_.init, seat_->fence, ready_at_);
}

void JobInside::enter() {
  DDPRUN_ASSERT(!is_settled_);
  if (!group_) join();
  rank_ = group_->rank();
  world_size_ = group_->world_size();
  pass("joined");
  settle_state();
  is_settled_ = true;
  ++counters_.rounds;
  report_resumed();
}

void JobInside::settle_state() {
  units_raised_at_ = -1;
  standing_.signature = signature_of_shards(kept_.signature(options_.check_every));
  standing_.signature ^= signature_of_options();
  standing_.node = group_->identity().group_rank;
  standing_.saves = memory_.standing();
  Settlement settled = query_all();
  begin_memory(settled);
  if (settled.saves >= 0 && settled.is_lost && restore_from_memory(settled.committed)) {
    settled = query_all();
  }
  pass("settled");
  try {
    stage_shards({settled.committed, settled.made});
  } catch (const Error&) {
    const std::int64_t resumed = settled.is_lost ? settled.committed : -1;  // By the program.
    if (!is_lost_ || settled.saves < 0 || !restore_from_memory(resumed)) throw;
    settled = query_all();
    stage_shards({settled.committed, settled.made});
  }
  if (settled.has_lacking) {
    take_state(settled);
  } else {
    meet_with_shards();
  }
  install_shards();
  standing_.condition = Condition::kWhole;
  standing_.committed = settled.committed;
  standing_.visited = settled.visited;
  standing_.target = settled.target;
  standing_.closed = settled.closed;
  standing_.made = settled.made;
  standing_.met = round();
  first_of_round_ = settled.committed;
  note_committed();
  capture_lost_work();
}

// 0 for the defaults.
std::uint64_t JobInside::signature_of_options() const {
  return ((options_.even_shards ? 1U : 0U) | static_cast<std::uint64_t>(per_million_) << 1) ^
         static_cast<std::uint64_t>(options_.memory_every) * 0x9e3779b97f4a7c15U ^
         static_cast<std::uint64_t>(bundle_every_) * 0xd1b54a32d192ed03U;
}

Settlement JobInside::query_all() {
  const auto mine = standing_.numbers();
  const auto ranks = static_cast<std::size_t>(group_->world_size());
  std::vector<std::int64_t> all(ranks * mine.size());
  group_->all_gather(buffer(const_cast<std::int64_t*>(mine.data()), mine.size()),
                     buffer(all.data(), all.size()), {.on_host = true});
  std::vector<Standing> by_rank;
  std::vector<Pace> paces;
  nodes_.clear();
  for (std::size_t r = 0; r < ranks; ++r) {
    by_rank.push_back(Standing::of(all.data() + r * mine.size()));
    nodes_.push_back(static_cast<int>(by_rank.back().node));
    paces.push_back(by_rank.back().pace);
  }
  division_ = ShardDivision(paces);
  hosts_ = numbers_of_hosts(*group_);
  disputes_.clear();
  Settlement settled = settle(by_rank);
  if (settled.problem.empty()) return settled;
  const ErrorKind kind = settled.is_torn ? ErrorKind::corrupt : ErrorKind::mismatch;
  throw Error(kind,
              {.rank = group_->rank(), .operation = "entering a round", .peer = settled.culprit},
              settled.problem);
}

// The ranks of a node share its memory folder.
void JobInside::begin_memory(const Settlement& settled) {
  const int mine = nodes_[static_cast<std::size_t>(group_->rank())];
  std::vector<int> together;
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    const bool here = nodes_[static_cast<std::size_t>(rank)] == mine;
    if (here || !sharded_.empty()) together.push_back(rank);
  }
  memory_.begin(group_->rank(), settled.committed, settled.saves, std::move(together));
}

// True: all ranks have the state of more than `above` steps that was in the memory folders.
bool JobInside::restore_from_memory(std::int64_t above) {
  KeptState::Staged staged;
  std::string path;
  const auto step =
      memory_.restore(*group_, above, [&](const std::string& found, const Checkpoint& checkpoint) {
        staged = kept_.read(checkpoint);
        for (const auto& one : sharded_) one->state_->check(checkpoint, memory_.share());
        path = found;
      });
  if (!step) return false;
  pass("restored");
  standing_.condition = Condition::kTorn;
  kept_.put(*group_, staged);
  standing_.condition = Condition::kWhole;
  standing_.committed = standing_.visited = origin_ = *step;
  standing_.made = standing_.met = -1;
  for (const auto& one : sharded_) one->state_->fill_from(path);
  is_lost_ = false;
  is_restored_ = true;
  memory_.begin_at(*step);
  if (group_->rank() != 0) return true;
  std::fprintf(stderr,
               "ddprun: rank 0: no worker has the state of the job: it continues at step %" PRId64
               ", as kept in the memory folder\n",
               *step);
  return true;
}

// After all that is to be done between two steps. True: it was time to.
bool JobInside::save_in_memory() {
  if (!memory_.is_due(committed()) || committed() == 0) return false;
  const auto began = Clock::now();
  std::vector<std::string> lent;
  std::vector<CheckpointPiece> pieces = kept_.pieces(*group_, memory_.share(), lent);
  add_shard_pieces(pieces);
  pass("saving");
  memory_.save(*group_, committed(), pieces, began);
  pass("saved");
  return true;
}

void JobInside::take_state(const Settlement& settled) {
  if (group_->rank() == settled.source) {
    counters_.bytes_sent += kept_.send(*group_);
    return meet_with_shards();
  }
  const bool is_lacking = lacks(standing_, settled, group_->rank());
  const KeptState::Staged staged = kept_.receive(*group_, settled.source, is_lacking);
  meet_with_shards();
  if (!is_lacking) return;
  pass("received");
  standing_.condition = Condition::kTorn;
  kept_.put(*group_, staged);
  for (const auto& part : staged) counters_.bytes_received += part.size();
}

void JobInside::report_resumed() {
  if (!link_) return;
  const bool repeats = begun_ == committed();
  const auto lost =
      counters_.rounds == 1
          ? std::chrono::microseconds(0)
          : std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - last_commit_);
  if (repeats) ++counters_.repeated_steps;
  counters_.lost += lost;
  link_->send(worker_link::Resumed{
      .round = round(), .step = committed(), .repeated = repeats ? 1 : 0, .lost_us = lost.count()});
}

void JobInside::leave() {
  DDPRUN_ASSERT(link_ && seat_);
  const bool planned = std::exchange(leaving_, false) && !is_over();
  is_settled_ = is_cut_ = false;
  if (group_) end_shard();
  memory_.end();
  group_.reset();  // Completes what peers may still wait for.
  if (planned) {
    ++counters_.planned;
    link_->leave(*seat_, "all ranks have left it after step " + std::to_string(committed()));
  }
  left_round_ = seat_->place.round;
  seat_.reset();
}

// An operation has failed, or would have.
bool JobInside::has_lost_round() const { return is_cut_ || GroupInside::is_dead(*group_); }

bool JobInside::may_be_the_rounds_end() const {
  const bool failed = !group_ || has_lost_round();  // While joining, or in the round.
  try {
    throw;
  } catch (const Error& error) {
    return may_be_a_lost_peer(error.kind()) || (failed && is_over());
  } catch (...) {
    return group_ && failed;  // Perhaps an Error that is wrapped in another exception.
  }
}

bool JobInside::has_been_left() {
  try {
    return group_ && group_->store().check({kLeftKey});
  } catch (const Error&) {
    return false;
  }
}

// False: the round goes on, so the error is one of this round.
bool JobInside::await_end_of_round() {
  auto until = Clock::now() + kMessagePatience;
  for (bool is_left = false; Clock::now() < until;) {
    const auto began = Clock::now();
    if (link_->await_fence(*seat_, kPollInterval)) return true;
    if (Clock::now() - began < kPollInterval) return false;  // The agent is gone.
    if (!is_left && has_been_left()) {
      is_left = true;
      until = std::min(until, Clock::now() + kExitPatience);
    }
  }
  return is_over();
}

void JobInside::leave_or_throw() {
  DDPRUN_ASSERT(std::current_exception());
  if (!link_ || !seat_ || !may_be_the_rounds_end()) throw;
  if (!is_over() && !await_end_of_round()) throw;
  pass("left");
  leave();
}

}  // namespace ddprun::elastic
