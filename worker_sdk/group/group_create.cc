// ProcessGroup::init: makes a group from the variables of a process, or of a seat.

#include "ddprun/expect_steps.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "common/system/own_process.h"
#include "ddprun/crash_report.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/group/process_group_impl.h"
#include "worker_sdk/join/meeting.h"
#include "worker_sdk/store/file_store.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::chrono::milliseconds kJoinAgain{20};

bool may_be_the_store_before(const Plan& plan, const Error& error) {
  if (!plan.rendezvous.hosted_by_rank_0 || plan.identity.rank == 0) return false;
  if (ended_lives(plan) == 0) return false;
  const std::string& operation = error.where().operation;
  const bool lost = error.kind() == ErrorKind::unreachable && operation != kJoining;
  return lost || operation == kTakingSeat;
}

// Joins again if the store was the wrong one: a store that rank 0 hosts ends with rank 0's group,
// and the others may find the one of the group before, at the same port.
Joined join_anew(const Plan& plan, std::chrono::milliseconds timeout, const Kin& kin) {
  const auto deadline = deadline_after(timeout);
  for (;;) {
    try {
      return join(plan, left_until(deadline), kin);
    } catch (const Error& error) {
      if (Clock::now() >= deadline || !may_be_the_store_before(plan, error)) throw;
    }
    retry_until(Clock::now() + kJoinAgain, [] { return false; });
  }
}

}  // namespace

bool wants_crash_report() {
  return !environment_variable("TORCHELASTIC_ERROR_FILE").empty() &&
         environment_variable("DDPRUN_CRASH_REPORT") != "0";
}

Variables GroupInside::process_variables() {
  Variables variables;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

ProcessGroup GroupInside::join(const Plan& plan, const InitOptions& options,
                               const std::shared_ptr<RoundFence>& fence,
                               std::chrono::nanoseconds joining_at) {
  if (wants_crash_report()) install_crash_report();
  auto progress = std::make_shared<Progress>(environment_variable("DDPRUN_PROGRESS"), fence);
  progress->begin_joining(joining_at.count() > 0 ? joining_at : process_age());
  return join(plan, options, std::move(progress));
}

ProcessGroup GroupInside::join_unseen(const InitOptions& options) {
  auto plan = read_environment(process_variables(), options);
  plan.prefix = "/unseen" + life_prefix(plan);
  plan.backend = "auto";
  return join(plan, options, std::make_shared<Progress>());
}

ProcessGroup GroupInside::join(const Plan& plan, const InitOptions& options,
                               std::shared_ptr<Progress> progress) {
  auto siblings = std::make_shared<NcclSiblings>(progress);
  auto joined = join_anew(plan, options.init_timeout,
                          {.siblings = siblings,
                           .store = nullptr,
                           .nccl = nullptr,
                           .excluded = {},
                           .fence = progress->fence()});
  progress->met();
  return ProcessGroup(std::make_unique<ProcessGroup::Impl>(
      plan, std::move(joined), options, std::move(progress), std::move(siblings)));
}

}  // namespace ddprun::worker_sdk

namespace ddprun {

ProcessGroup ProcessGroup::init(const InitOptions& options) {
  if (worker_sdk::wants_crash_report()) install_crash_report();
  if (options.op_timeout.count() <= 0 || options.init_timeout.count() <= 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup::init"},
                "init_timeout and op_timeout must be positive");
  }
  auto plan = worker_sdk::read_environment(worker_sdk::GroupInside::process_variables(), options);
  plan.prefix = worker_sdk::life_prefix(plan);
  return worker_sdk::GroupInside::join(plan, options);
}

}  // namespace ddprun

namespace ddprun {

// ProcessGroup::create: a group over the program's own store.

namespace {

using worker_sdk::NcclSiblings;
using worker_sdk::Plan;
using worker_sdk::Progress;
using worker_sdk::Rendezvous;

[[noreturn]] void refuse(const CreateOptions& options, const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.rank = options.rank, .operation = "ProcessGroup::create"},
              text);
}

void check(const CreateOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    refuse(options, "rank " + std::to_string(options.rank) + " is not within 0 .. " +
                        std::to_string(options.world_size - 1));
  }
  if (options.op_timeout.count() <= 0 || options.init_timeout.count() <= 0) {
    refuse(options, "init_timeout and op_timeout must be positive");
  }
  const std::vector<int>& ranks = options.job_ranks;
  if (ranks.empty()) return;
  const bool all = ranks.size() == static_cast<std::size_t>(options.world_size);
  if (!all || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size() ||
      *std::min_element(ranks.begin(), ranks.end()) < 0) {
    refuse(options, "job_ranks must be another rank of the job for each rank of the group");
  }
}

Plan plan_of(const CreateOptions& options) {
  auto variables = worker_sdk::GroupInside::process_variables();
  const std::string towards = variables["MASTER_ADDR"];
  InitOptions known;
  known.init_method = "file:///a store of the program's";
  known.backend = options.backend;
  known.host = options.host;
  known.rank = options.rank;
  known.world_size = options.world_size;
  known.nccl = options.nccl;
  Plan plan = worker_sdk::read_environment(variables, known);
  plan.rendezvous = {.kind = Rendezvous::Kind::kGiven, .host = towards, .path = {}};
  plan.address = options.address;
  plan.prefix = "/" + options.prefix;
  plan.job_ranks = options.job_ranks;
  return plan;
}

// Shared by the group of the whole job and later groups of a part of it, as if those were split
// off.
struct OfJob {
  std::weak_ptr<Progress> progress;
  std::weak_ptr<NcclSiblings> siblings;
};

std::pair<std::shared_ptr<Progress>, std::shared_ptr<NcclSiblings>> relatives(bool whole_job) {
  static std::mutex* const mutex = new std::mutex;  // Groups may end after static objects.
  static OfJob* const job = new OfJob;
  const std::lock_guard lock(*mutex);
  auto progress = job->progress.lock();
  auto siblings = job->siblings.lock();
  if (!whole_job && progress && siblings) return {progress, siblings};
  progress = std::make_shared<Progress>(environment_variable("DDPRUN_PROGRESS"));
  siblings = std::make_shared<NcclSiblings>(progress);
  if (whole_job) job->progress = progress, job->siblings = siblings;
  return {progress, siblings};
}

}  // namespace

ProcessGroup ProcessGroup::create(std::shared_ptr<Store> store, const CreateOptions& options) {
  if (worker_sdk::wants_crash_report()) install_crash_report();
  check(options);
  if (!store) refuse(options, "the store is null");
  const Plan plan = plan_of(options);
  auto [progress, siblings] = relatives(options.job_ranks.empty());
  auto joined = worker_sdk::join(
      plan, options.init_timeout,
      {.siblings = siblings,
       .store = std::make_shared<worker_sdk::PolledStore>(std::move(store), nullptr),
       .nccl = nullptr,
       .excluded = {},
       .fence = nullptr});
  InitOptions timeouts;
  timeouts.init_timeout = options.init_timeout;
  timeouts.op_timeout = options.op_timeout;
  return ProcessGroup(std::make_unique<Impl>(plan, std::move(joined), timeouts, std::move(progress),
                                             std::move(siblings)));
}

// ProcessGroup::shrink: the survivors of a group agree on its members and join again.

namespace {

using std::chrono::milliseconds;
using worker_sdk::Clock;

constexpr int kAttempts = 3;
constexpr milliseconds kLimitMax{60000};  // For an attempt to join, plus kLimitPerRank per rank.
constexpr milliseconds kLimitPerRank{50};

std::vector<int> rising(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> all_but(const std::vector<int>& members, int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) {
    if (!std::binary_search(members.begin(), members.end(), r)) ranks.push_back(r);
  }
  return ranks;
}

// The cause may be the death of another survivor in this attempt.
bool is_worth_another(ErrorKind kind) {
  return kind == ErrorKind::unreachable || kind == ErrorKind::timed_out ||
         kind == ErrorKind::peer_lost;
}

}  // namespace

ProcessGroup ProcessGroup::shrink(const ShrinkOptions& options) {
  inside("shrink");
  for (const int r : options.lost) {
    if (r >= 0 && r < world_size() && r != rank()) continue;
    impl_->refuse("shrink", "rank " + std::to_string(r) + " cannot be lost");
  }
  if (options.patience.count() < 0) impl_->refuse("shrink", "the patience must not be negative");
  const auto nccl = impl_->retire();
  const std::string prefix = "/shrink " + std::to_string(++impl_->shrinks) + ".";
  for (int attempt = 1;; ++attempt) {
    try {
      return ProcessGroup(impl_->shrunk(prefix + std::to_string(attempt), options, nccl));
    } catch (const Error& error) {
      if (attempt == kAttempts || !is_worth_another(error.kind())) throw;
    }
  }
}

std::unique_ptr<ProcessGroup::Impl> ProcessGroup::Impl::shrunk(
    const std::string& prefix, const ShrinkOptions& options,
    std::shared_ptr<worker_sdk::NcclCommunicator> nccl) {
  const std::string in_store =
      "ddprun/" + std::to_string(plan.identity.restart_count) + plan.prefix + prefix;
  const auto keys = with_prefix(*store, in_store);
  const int size = roster->size();
  const auto half = std::min<milliseconds>(init_timeout / 2, kLimitMax + kLimitPerRank * size);
  const auto left = worker_sdk::agree_on_survivors(
      *keys, {.rank = roster->rank,
              .size = size,
              .lost = rising(options.lost),
              .give_up = worker_sdk::deadline_after(options.patience),
              .limit = half});
  const auto me = std::find(left.members.begin(), left.members.end(), roster->rank);
  if (me == left.members.end()) {
    throw Error(
        ErrorKind::aborted, roster->here("shrink"),
        "the others continue without this rank: it called too late, or one of them listed it as "
        "lost");
  }
  const worker_sdk::Plan next = plan_among(left.members, prefix);
  worker_sdk::Kin kin{.siblings = nullptr,
                      .store = store,
                      .nccl = std::move(nccl),
                      .excluded = all_but(left.members, size)};
  std::set<int> gone = siblings->gone();
  for (const int r : kin.excluded) gone.insert(roster->of_job(r));
  kin.siblings = std::make_shared<worker_sdk::NcclSiblings>(progress, std::move(gone));
  InitOptions timeouts;
  timeouts.init_timeout = init_timeout;
  timeouts.op_timeout = op_timeout;
  auto joined = worker_sdk::join(next, left.limit, kin);
  auto impl = std::make_unique<Impl>(next, std::move(joined), timeouts, progress, kin.siblings);
  impl->store_host = store_host;
  return impl;
}

void expect_steps(ProcessGroup& group, std::int64_t more) {
  const auto left = static_cast<std::uint64_t>(std::max<std::int64_t>(more, 0));
  worker_sdk::GroupInside::progress(group)->expect_steps(left);
}

}  // namespace ddprun
