// ProcessGroup: tells who it is, splits. Its operations are in process_group_calls.cc, init() is in
// group_init.cc.

#include "ddprun/process_group.h"

#include <algorithm>
#include <cstring>

#include "worker_sdk/group/process_group_impl.h"

namespace ddprun {
namespace {

// What each rank says when a group is split.
struct Wish {
  std::int32_t color = -1;
  std::int32_t key = 0;
};

// The ranks that wish for `color`, by key, then by rank.
std::vector<int> members_of(std::int32_t color, const std::vector<Wish>& wishes) {
  std::vector<int> members;
  for (std::size_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r].color == color) members.push_back(static_cast<int>(r));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
  });
  return members;
}

}  // namespace

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) {
  const Wish mine{color, key};
  std::vector<Wish> wishes(static_cast<std::size_t>(world_size()));
  all_gather({const_cast<Wish*>(&mine), 2, DataType::i32},
             {wishes.data(), 2 * wishes.size(), DataType::i32}, {.on_host = true});
  const std::uint64_t number = ++impl_->splits;
  if (color < 0) return std::nullopt;
  const std::vector<int> members = members_of(color, wishes);
  const worker_sdk::Plan plan = impl_->plan_among(
      members, "/split " + std::to_string(number) + " color " + std::to_string(color));
  InitOptions options;
  options.init_timeout = impl_->init_timeout;
  options.op_timeout = impl_->op_timeout;
  auto joined = worker_sdk::join(plan, options.init_timeout,
                                 {.siblings = impl_->siblings,
                                  .store = impl_->store,
                                  .nccl = nullptr,
                                  .excluded = {},
                                  .fence = impl_->progress->fence()});
  auto impl =
      std::make_unique<Impl>(plan, std::move(joined), options, impl_->progress, impl_->siblings);
  impl->store_host = impl_->store_host;
  return ProcessGroup(std::move(impl));
}

worker_sdk::Plan ProcessGroup::Impl::plan_among(const std::vector<int>& members,
                                                const std::string& prefix) const {
  worker_sdk::Plan next = plan;
  next.identity.rank =
      static_cast<int>(std::find(members.begin(), members.end(), roster->rank) - members.begin());
  next.identity.world_size = static_cast<int>(members.size());
  next.local_rank_known = false;
  if (device) next.gpu.device = device->index();
  next.rendezvous.hosted_by_rank_0 = false;  // It is there already.
  next.prefix += prefix;
  next.job_ranks.clear();
  for (const int r : members) next.job_ranks.push_back(roster->of_job(r));
  return next;
}

// In a forked child nothing ends: threads are not there, and what would be told is not true.
ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl)
    : impl_(impl.release(), [](Impl* inside) {
        if (!inside->is_forked_child()) delete inside;
      }) {}
ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

ProcessGroup ProcessGroup::share() const {
  inside();
  return ProcessGroup(impl_);
}

ProcessGroup::Impl& ProcessGroup::inside() const {
  if (impl_) return *impl_;
  throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup"},
              "this ProcessGroup was moved from; use the one that it was moved into");
}

ProcessGroup::Impl& ProcessGroup::inside(const char* operation) const {
  inside().require_joined(operation);
  return *impl_;
}

const Identity& ProcessGroup::identity() const { return inside().identity; }

const std::string& ProcessGroup::backend() const { return inside().backend_name; }

int ProcessGroup::device() const {
  const auto* device = inside().device;
  return device ? device->index() : -1;
}

const std::string& ProcessGroup::host_of(int rank) const {
  if (rank < 0 || rank >= world_size()) {  // Which also throws if it was moved from.
    throw Error(ErrorKind::bad_argument, impl_->roster->here("host_of"),
                "there is no rank " + std::to_string(rank));
  }
  return impl_->roster->hosts[static_cast<std::size_t>(rank)];
}

void ProcessGroup::set_phase(std::string_view name) {
  inside("set_phase").progress->set_phase(name);
}

Store& ProcessGroup::store() { return *inside("store").store; }

void ProcessGroup::use_stream(std::optional<Stream> stream) { inside().stream = stream; }

void ProcessGroup::copy(void* to, const void* from, std::size_t bytes) {
  const Impl& group = inside("copy");
  if (bytes == 0 || to == from) return;
  if (!to || !from) group.refuse("copy", "an array is null");
  if (group.device) return group.device->copy(to, from, bytes, group.stream, group.op_timeout);
  std::memmove(to, from, bytes);
}

void ProcessGroup::zero(void* to, std::size_t bytes) {
  const Impl& group = inside("zero");
  if (bytes == 0) return;
  if (!to) group.refuse("zero", "the array is null");
  if (group.device) return group.device->zero(to, bytes, group.stream, group.op_timeout);
  std::memset(to, 0, bytes);
}

bool ProcessGroup::shutdown(std::chrono::milliseconds limit) {
  return inside("shutdown").shut_down(limit);
}

int ProcessGroup::completion_descriptor() {
  Impl& group = inside("completion_descriptor");
  return group.completions->descriptor(group.roster->here("completion_descriptor"));
}

void ProcessGroup::abort() noexcept {
  if (impl_ && !impl_->is_forked_child()) impl_->abort();
}

}  // namespace ddprun
