// ProcessGroup: its rank, its operations, and how they run. group_create.cc makes groups.

#include "ddprun/process_group.h"

#include <algorithm>
#include <cstring>

#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/group/process_group_channels.h"
#include "worker_sdk/group/process_group_impl.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun {
namespace {

// Sent by each rank when a group is split.
struct SplitRequest {
  std::int32_t color = -1;
  std::int32_t key = 0;
};

// The ranks that chose `color`, by key, then by rank.
std::vector<int> members_of(std::int32_t color, const std::vector<SplitRequest>& requests) {
  std::vector<int> members;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (requests[r].color == color) members.push_back(static_cast<int>(r));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return requests[static_cast<std::size_t>(a)].key < requests[static_cast<std::size_t>(b)].key;
  });
  return members;
}

}  // namespace

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) {
  const SplitRequest mine{color, key};
  std::vector<SplitRequest> requests(static_cast<std::size_t>(world_size()));
  all_gather({const_cast<SplitRequest*>(&mine), 2, DataType::i32},
             {requests.data(), 2 * requests.size(), DataType::i32}, {.on_host = true});
  const std::uint64_t number = ++impl_->splits;
  if (color < 0) return std::nullopt;
  const std::vector<int> members = members_of(color, requests);
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
  next.rendezvous.hosted_by_rank_0 = false;  // It is hosted already.
  next.prefix += prefix;
  next.job_ranks.clear();
  for (const int r : members) next.job_ranks.push_back(roster->of_job(r));
  return next;
}

// Destroys nothing in a forked child: it has no threads, and would send false reports.
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
  if (rank < 0 || rank >= world_size()) {  // world_size() throws if it was moved from.
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

// ProcessGroup's operations, each in two forms: checks the arguments, then has the backend called.
void ProcessGroup::all_reduce(Buffer inout, ReduceOp op, const CallOptions& options) {
  inside().run(inside().arguments.all_reduce(inout, op), options);
}
Work ProcessGroup::all_reduce_async(Buffer inout, ReduceOp op, const CallOptions& options) {
  return inside().run_async(inside().arguments.all_reduce(inout, op), options);
}

void ProcessGroup::reduce(Buffer in, Buffer out, int root, ReduceOp op,
                          const CallOptions& options) {
  inside().run(inside().arguments.reduce(in, out, root, op), options);
}
Work ProcessGroup::reduce_async(Buffer in, Buffer out, int root, ReduceOp op,
                                const CallOptions& options) {
  return inside().run_async(inside().arguments.reduce(in, out, root, op), options);
}

void ProcessGroup::reduce_scatter(const PartsBuffer& in, Buffer out, ReduceOp op,
                                  const CallOptions& options) {
  inside().run(inside().arguments.reduce_scatter(in, out, op), options);
}
Work ProcessGroup::reduce_scatter_async(const PartsBuffer& in, Buffer out, ReduceOp op,
                                        const CallOptions& options) {
  return inside().run_async(inside().arguments.reduce_scatter(in, out, op), options);
}

void ProcessGroup::broadcast(Buffer inout, int root, const CallOptions& options) {
  inside().run(inside().arguments.broadcast(inout, root), options);
}
Work ProcessGroup::broadcast_async(Buffer inout, int root, const CallOptions& options) {
  return inside().run_async(inside().arguments.broadcast(inout, root), options);
}

void ProcessGroup::all_gather(Buffer in, const PartsBuffer& out, const CallOptions& options) {
  inside().run(inside().arguments.all_gather(in, out), options);
}
Work ProcessGroup::all_gather_async(Buffer in, const PartsBuffer& out, const CallOptions& options) {
  return inside().run_async(inside().arguments.all_gather(in, out), options);
}

void ProcessGroup::all_to_all(const PartsBuffer& in, const PartsBuffer& out,
                              const CallOptions& options) {
  inside().run(inside().arguments.all_to_all(in, out), options);
}
Work ProcessGroup::all_to_all_async(const PartsBuffer& in, const PartsBuffer& out,
                                    const CallOptions& options) {
  return inside().run_async(inside().arguments.all_to_all(in, out), options);
}

void ProcessGroup::gather(Buffer in, const PartsBuffer& out, int root, const CallOptions& options) {
  inside().run(inside().arguments.gather(in, out, root), options);
}
Work ProcessGroup::gather_async(Buffer in, const PartsBuffer& out, int root,
                                const CallOptions& options) {
  return inside().run_async(inside().arguments.gather(in, out, root), options);
}

void ProcessGroup::scatter(const PartsBuffer& in, Buffer out, int root,
                           const CallOptions& options) {
  inside().run(inside().arguments.scatter(in, out, root), options);
}
Work ProcessGroup::scatter_async(const PartsBuffer& in, Buffer out, int root,
                                 const CallOptions& options) {
  return inside().run_async(inside().arguments.scatter(in, out, root), options);
}

void ProcessGroup::send(Buffer in, int destination, const CallOptions& options) {
  inside().run(inside().arguments.send(in, destination), options);
}
Work ProcessGroup::send_async(Buffer in, int destination, const CallOptions& options) {
  return inside().run_async(inside().arguments.send(in, destination), options);
}

void ProcessGroup::recv(Buffer out, int source, const CallOptions& options) {
  inside().run(inside().arguments.recv(out, source), options);
}
Work ProcessGroup::recv_async(Buffer out, int source, const CallOptions& options) {
  return inside().run_async(inside().arguments.recv(out, source), options);
}

void ProcessGroup::barrier(const CallOptions& options) {
  inside().run({{.kind = worker_sdk::OpKind::kBarrier}, {}}, options);
}

Work ProcessGroup::barrier_async(const CallOptions& options) {
  return inside().run_async({{.kind = worker_sdk::OpKind::kBarrier}, {}}, options);
}

std::shared_ptr<void> ProcessGroup::allocate(std::size_t bytes) { return inside().allocate(bytes); }

// How a ProcessGroup runs an operation: numbers it, sets its deadline, and has the backend carry it
// out here or on the queue's thread, or enqueue it in a stream. A failure ends the group.

using worker_sdk::Arrays;
using worker_sdk::Call;
using worker_sdk::Clock;
using worker_sdk::InCollective;
using worker_sdk::Operation;
using worker_sdk::OpKind;
using worker_sdk::Pending;
using worker_sdk::Signature;

std::chrono::milliseconds ProcessGroup::Impl::timeout_of(const Signature& what,
                                                         const CallOptions& options) const {
  if (options.timeout.count() < 0) {
    refuse(to_string(what), "the timeout must not be negative");
  }
  return options.timeout.count() == 0 ? op_timeout : options.timeout;
}

Call ProcessGroup::Impl::number(const Signature& what) {
  return {.what = what, .number = is_message(what.kind) ? ++messages : ++collectives};
}

// Starts the time of the operation. While the result lives, this rank is reported as being in it.
InCollective ProcessGroup::Impl::begin(Call& call, std::chrono::milliseconds timeout) {
  call.start = Clock::now();
  call.deadline = worker_sdk::deadline_after(call.start, timeout);
  refuse_fenced(call);
  if (dead.load(std::memory_order_acquire)) refuse_dead(call);
  return {*progress, call, plan.job_ranks.empty()};
}

// Runs `body` at once, which has carried out the operation when it returns.
template <class Body>
void ProcessGroup::Impl::perform(Call call, std::chrono::milliseconds timeout, const Body& body) {
  const InCollective here = begin(call, timeout);
  try {
    body(call);
    // The peers may have done their part before they, or this thread, could notice the abort.
    if (aborted.load()) refuse_aborted(call);
  } catch (const Error& error) {
    refuse_fenced(call);
    die(error);
    throw;
  } catch (const std::exception& error) {
    const std::string why = worker_sdk::as_error(error, {}).text();
    die(why);
    throw failure(*roster, call, ErrorKind::system, -1, why);
  }
}

// Runs `body` after all queued operations, in this thread or the queue's; it has ended on return.
template <class Body>
void ProcessGroup::Impl::perform_in_turn(const Call& call, std::chrono::milliseconds timeout,
                                         const Body& body) {
  if (queue.idle()) return perform(call, timeout, body);
  Work(queue.post([&] { perform(call, timeout, body); })).wait();
}

// Called for a channel: `this` is its pair.
void ProcessGroup::Impl::perform_message(const Call& call, std::chrono::milliseconds timeout,
                                         const Arrays& arrays) {
  perform(call, timeout, [&](const Call& begun) { backend->carry_out(begun, arrays); });
}

bool ProcessGroup::Impl::has_channel(const Signature& what, const CallOptions& options) const {
  return is_message(what.kind) && options.tag >= 0 && !device;
}

Work ProcessGroup::Impl::post_message(const Operation& message, const CallOptions& options) {
  const Caller here(*this, message.what);
  return channels->post(message, options.tag, timeout_of(message.what, options));
}

void ProcessGroup::Impl::start(worker_sdk::WorkQueue& which, const Signature& what) {
  which.start(roster->here(to_string(what)));
}

// Whether a device carries it out without the host.
bool ProcessGroup::Impl::is_devices(const Signature& what, const CallOptions& options) const {
  const bool always_hosts = what.kind == OpKind::kBarrier || what.kind == OpKind::kAllocate;
  return device && !options.on_host && !always_hosts;
}

std::optional<Stream> ProcessGroup::Impl::stream_of(const CallOptions& options) const {
  return options.stream ? options.stream : stream;
}

std::shared_ptr<Pending> ProcessGroup::Impl::enqueue(Call call, std::chrono::milliseconds timeout,
                                                     const Arrays& arrays,
                                                     const CallOptions& options) {
  const InCollective here = begin(call, timeout);
  try {
    return device->enqueue(call, arrays, stream_of(options).value_or(nullptr));
  } catch (const Error& error) {
    refuse_fenced(call);
    die(error);
    throw;
  }
}

// Makes `after` wait for the operation, or this thread if there is no stream.
void ProcessGroup::Impl::await(const Call& call, Pending& pending, std::optional<Stream> after) {
  const InCollective here(*progress, call, plan.job_ranks.empty());
  try {
    if (after) return pending.follow(*after);
    pending.wait_until(Clock::time_point::max());
  } catch (const Error& error) {
    refuse_fenced(call);
    die(error);
    throw;
  }
}

// Calls the backend; for a premul_sum, multiplies this rank's elements first: in place if they are
// to be replaced, else in a copy.
void ProcessGroup::Impl::carry_out(const Call& call, const Arrays& arrays, double factor) {
  const bool premultiplied =
      call.what.op == ReduceOp::premul_sum && worker_sdk::is_reduction(call.what.kind);
  if (!premultiplied) return backend->carry_out(call, arrays);
  if (is_of(call.what.type, TypeClass::half)) return carry_out_in_f32(call, arrays, factor);
  Arrays given = arrays;
  std::vector<std::unique_ptr<std::byte[]>> copies;
  const auto multiply = [&](Buffer& source) {
    if (call.what.kind != OpKind::kAllReduce && source.count > 0) {
      copies.push_back(std::make_unique_for_overwrite<std::byte[]>(source.bytes()));
      source.data = std::memcpy(copies.back().get(), source.data, source.bytes());
    }
    worker_sdk::multiply(source.type, source.data, source.count, factor);
  };
  multiply(given.in);
  for (Buffer& part : given.ins) multiply(part);
  backend->carry_out(call, given);
}

// A premul_sum of halves: their products would be rounded before the sum, and once more behind it.
void ProcessGroup::Impl::carry_out_in_f32(const Call& call, const Arrays& arrays, double factor) {
  std::vector<std::unique_ptr<float[]>> memory;
  const auto widened = [&](const Buffer& half, bool is_input) {
    memory.push_back(std::make_unique_for_overwrite<float[]>(half.count));
    const Buffer wide = buffer(memory.back().get(), half.count);
    if (!is_input || half.count == 0) return wide;
    worker_sdk::convert(half, wide);
    worker_sdk::multiply(wide.type, wide.data, wide.count, factor);
    return wide;
  };
  Arrays wide = arrays;
  try {
    wide.in = widened(arrays.in, true);
    for (Buffer& part : wide.ins) part = widened(part, true);
    const bool replaces = call.what.kind == OpKind::kAllReduce;
    wide.out = replaces ? wide.in : widened(arrays.out, false);
  } catch (const std::bad_alloc&) {
    backend->abort();  // Ends the peers' waits before their deadline.
    throw;
  }
  backend->carry_out(call, wide);
  if (arrays.out.count > 0) worker_sdk::convert(wide.out, arrays.out);
}

// Before anything is counted.
void ProcessGroup::Impl::require_supported(const Operation& operation) const {
  const std::string why = device->refusal(operation.what, operation.arrays);
  if (why.empty()) return;
  throw Error(ErrorKind::unsupported, roster->here(worker_sdk::to_string(operation.what)), why);
}

void ProcessGroup::Impl::run(const Operation& operation, const CallOptions& options) {
  if (has_channel(operation.what, options)) return post_message(operation, options).wait();
  const Caller here(*this, operation.what);
  const auto timeout = timeout_of(operation.what, options);
  const bool of_device = is_devices(operation.what, options);
  if (of_device) require_supported(operation);
  const Call call = number(operation.what);
  if (of_device) {
    const auto pending = enqueue(call, timeout, operation.arrays, options);
    return await(call, *pending, stream_of(options));
  }
  perform_in_turn(call, timeout,
                  [&](const Call& begun) { carry_out(begun, operation.arrays, options.factor); });
}

Work ProcessGroup::Impl::run_async(const Operation& operation, const CallOptions& options) {
  const Signature& what = operation.what;
  if (has_channel(what, options)) return post_message(operation, options);
  const Caller here(*this, what);
  const auto timeout = timeout_of(what, options);
  const bool of_device = is_devices(what, options);
  const bool queued = roster->size() > 1 && !of_device;
  if (of_device) require_supported(operation);
  if (queued) start(queue, what);  // May throw, so before this rank counts a call.
  const Call call = number(what);
  if (of_device) {
    auto state = std::make_shared<WorkState>();
    state->pending = enqueue(call, timeout, operation.arrays, options);
    state->stream = stream_of(options);
    return Work(std::move(state));
  }
  std::function<void()> task = [this, call, timeout, arrays = operation.arrays,
                                factor = options.factor] {
    perform(call, timeout, [&](const Call& begun) { carry_out(begun, arrays, factor); });
  };
  if (queued) return Work(queue.post(std::move(task), completions));
  auto state = std::make_shared<WorkState>();
  state->completions = completions;
  worker_sdk::WorkQueue::carry_out(task, *state);
  return Work(std::move(state));
}

std::shared_ptr<void> ProcessGroup::Impl::allocate(std::size_t bytes) {
  const Signature what{.kind = OpKind::kAllocate, .count = bytes};
  const Caller here(*this, what);
  std::shared_ptr<void> memory;
  perform_in_turn(number(what), op_timeout,
                  [&](const Call& begun) { memory = backend->allocate(begun, bytes); });
  return memory;
}

}  // namespace ddprun
