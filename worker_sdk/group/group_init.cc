// ProcessGroup::init: from the variables of a process, or of a seat, to a group.

#include <unistd.h>

#include "common/system/variable.h"
#include "ddprun/crash_report.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/group/process_group_impl.h"

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

// A store that rank 0 hosts ends with rank 0's group, and the others may find the one of the group
// before, at the same port.
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
                               const std::shared_ptr<RoundFence>& fence) {
  if (wants_crash_report()) install_crash_report();
  return join(plan, options,
              std::make_shared<Progress>(environment_variable("DDPRUN_PROGRESS"), fence));
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
