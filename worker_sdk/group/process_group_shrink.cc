// ProcessGroup::shrink: the survivors of a group agree who they are and join again.

#include <algorithm>

#include "worker_sdk/group/process_group_impl.h"
#include "worker_sdk/join/shrink_meeting.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using worker_sdk::Clock;

constexpr int kAttempts = 3;
constexpr milliseconds kLimitMax{60000};  // Of an attempt to join, and a little for each rank.
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

// Another survivor may have died meanwhile.
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

}  // namespace ddprun
