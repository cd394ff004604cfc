// ProcessGroup: joins, tells who it is, splits. Its operations are in process_group_calls.cc.

#include "ddprun/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ddprun/crash_report.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/group/process_group_impl.h"

namespace ddprun {
namespace {

worker_sdk::Variables process_variables() {
  worker_sdk::Variables variables;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

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

// A launcher reads what a crash leaves behind.
bool wants_crash_report() {
  const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  const char* wish = std::getenv("DDPRUN_CRASH_REPORT");
  return error_file && *error_file && !(wish && std::string_view(wish) == "0");
}

constexpr std::chrono::milliseconds kJoinAgain{20};

bool may_be_the_store_before(const worker_sdk::Plan& plan, const Error& error) {
  if (!plan.rendezvous.hosted_by_rank_0 || plan.identity.rank == 0) return false;
  if (worker_sdk::ended_lives(plan) == 0) return false;
  const std::string& operation = error.where().operation;
  const bool lost = error.kind() == ErrorKind::unreachable && operation != worker_sdk::kJoining;
  return lost || operation == worker_sdk::kTakingSeat;
}

// A store that rank 0 hosts ends with rank 0's group, and the others may find the one of the group
// before, at the same port.
worker_sdk::Joined join_anew(const worker_sdk::Plan& plan, std::chrono::milliseconds timeout,
                             const worker_sdk::Kin& kin) {
  const auto deadline = worker_sdk::deadline_after(timeout);
  for (;;) {
    try {
      return worker_sdk::join(plan, worker_sdk::left_until(deadline), kin);
    } catch (const Error& error) {
      if (worker_sdk::Clock::now() >= deadline || !may_be_the_store_before(plan, error)) throw;
    }
    worker_sdk::retry_until(worker_sdk::Clock::now() + kJoinAgain, [] { return false; });
  }
}

}  // namespace

ProcessGroup ProcessGroup::init(const InitOptions& options) {
  if (wants_crash_report()) install_crash_report();
  if (options.op_timeout.count() <= 0 || options.init_timeout.count() <= 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup::init"},
                "init_timeout and op_timeout must be positive");
  }
  const auto variables = process_variables();
  auto plan = worker_sdk::read_environment(variables, options);
  plan.prefix = worker_sdk::life_prefix(plan);
  const auto page = variables.find("DDPRUN_PROGRESS");
  auto progress =
      std::make_shared<worker_sdk::Progress>(page == variables.end() ? "" : page->second);
  auto siblings = std::make_shared<worker_sdk::NcclSiblings>(progress);
  auto joined = join_anew(plan, options.init_timeout, {.siblings = siblings});
  return ProcessGroup(std::make_unique<Impl>(plan, std::move(joined), options, std::move(progress),
                                             std::move(siblings)));
}

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
                                 {.siblings = impl_->siblings, .store = impl_->store});
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
    throw Error(ErrorKind::bad_argument, {.rank = impl_->roster->rank, .operation = "host_of"},
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
  if (group.device) return group.device->copy(to, from, bytes, group.stream, group.op_timeout);
  std::memmove(to, from, bytes);
}

void ProcessGroup::zero(void* to, std::size_t bytes) {
  const Impl& group = inside("zero");
  if (bytes == 0) return;
  if (group.device) return group.device->zero(to, bytes, group.stream, group.op_timeout);
  std::memset(to, 0, bytes);
}

void ProcessGroup::abort() noexcept {
  if (impl_ && !impl_->is_forked_child()) impl_->abort();
}

}  // namespace ddprun
