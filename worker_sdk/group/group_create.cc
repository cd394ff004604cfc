// ProcessGroup::create: a group over a store that the program has.

#include <algorithm>
#include <mutex>
#include <set>

#include "common/system/variable.h"
#include "ddprun/crash_report.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/group/process_group_impl.h"
#include "worker_sdk/store/polled_store.h"

namespace ddprun {
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

// What a part of the job shares with the group of the whole job, as if it were split off it.
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

}  // namespace ddprun
