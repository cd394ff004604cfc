// How a ProcessGroup has an operation carried out: numbers it, gives it its time, and has the
// backend carry it out here or on the queue's thread, or enqueue it in a stream. A failure ends the
// group.

#include <cstring>

#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/group/process_group_channels.h"
#include "worker_sdk/transport/convert.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun {

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

// Starts the time of the operation, and says for how long this rank is in it.
InCollective ProcessGroup::Impl::begin(Call& call, std::chrono::milliseconds timeout) {
  call.start = Clock::now();
  call.deadline = worker_sdk::deadline_after(call.start, timeout);
  refuse_fenced(call);
  if (dead.load(std::memory_order_acquire)) refuse_dead(call);
  return {*progress, call, plan.job_ranks.empty()};
}

// Here and now: `body` has carried out the operation when it returns.
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

// After all that is queued, in whichever thread; done when it returns.
template <class Body>
void ProcessGroup::Impl::perform_in_turn(const Call& call, std::chrono::milliseconds timeout,
                                         const Body& body) {
  if (queue.idle()) return perform(call, timeout, body);
  Work(queue.post([&] { perform(call, timeout, body); })).wait();
}

// Of a channel: `this` is its pair.
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

// Carried out by a device, behind the host's back?
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

// `after` waits for it, or else this thread.
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

// By the backend; of a premul_sum with this rank's elements multiplied: in place where they are to
// be replaced, else in a copy.
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
    backend->abort();  // The peers shall not wait for this rank until their deadline.
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
  if (queued) start(queue, what);  // Before this rank counts a call that its peers do not.
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
