// Carries out what the pure reducer decides: starts the all-reduces, waits for them, takes the
// times. Which parameters share a bucket is in buckets.cc, the check that ranks agree in
// agreement.cc.

#include "ddprun/distributed_data_parallel.h"

#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "worker_sdk/agreement.h"
#include "worker_sdk/buckets.h"
#include "worker_sdk/reducer.h"

namespace ddprun {
namespace {

using worker_sdk::BucketLayout;
using worker_sdk::PackItem;
using worker_sdk::Reducer;
using Clock = std::chrono::steady_clock;

struct Bucket {
  std::vector<std::size_t> parameters;
  std::shared_ptr<void> memory;
  Buffer flat;
  Work work;
};

[[noreturn]] void refuse(const ProcessGroup& group, const std::string& text) {
  throw Error(ErrorKind::bad_argument,
              {.rank = group.rank(),
               .host = group.host_of(group.rank()),
               .operation = "DistributedDataParallel"},
              text);
}

void check_parameter(const ProcessGroup& group, const Parameter& p, bool needs_value) {
  const DataType type = p.value.type;
  if (type != DataType::f32 && type != DataType::f64 && type != DataType::f16 &&
      type != DataType::bf16) {
    refuse(group, "parameter " + p.name + " is of type " + name_of(type) +
                      "; only floating-point gradients can be averaged");
  }
  std::size_t count = 1;
  for (const std::int64_t extent : p.shape) count *= static_cast<std::size_t>(extent);
  if (count != p.value.count) {
    refuse(group, "parameter " + p.name + " has " + std::to_string(p.value.count) +
                      " elements, but its shape " + std::to_string(count));
  }
  if (needs_value && count > 0 && p.value.data == nullptr) {
    refuse(group, "parameter " + p.name + " has no value to broadcast");
  }
}

std::vector<Parameter> checked(const ProcessGroup& group, std::vector<Parameter> parameters,
                               const DdpOptions& options) {
  if (parameters.empty()) refuse(group, "there are no parameters to train");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.empty()) parameters[i].name.append("#").append(std::to_string(i));
    check_parameter(group, parameters[i], options.broadcast_at_start);
  }
  return parameters;
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters) names.push_back(p.name);
  return names;
}

// Gradients arrive last layer first, so that is the order in which buckets are filled and launched.
std::vector<std::vector<std::size_t>> launch_order(const std::vector<Parameter>& parameters,
                                                   const DdpOptions& options) {
  std::vector<PackItem> items;
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    items.push_back({p->value.type, p->value.count});
  }
  auto buckets =
      worker_sdk::assign_buckets(items, {options.first_bucket_bytes, options.bucket_bytes});
  for (auto& bucket : buckets) {
    for (std::size_t& position : bucket) position = parameters.size() - 1 - position;
  }
  return buckets;
}

}  // namespace

struct DistributedDataParallel::Impl {
  enum class Pass { none, local, synchronised };

  Impl(ProcessGroup& g, std::vector<Parameter> given, const DdpOptions& options)
      : group(g),
        parameters(checked(g, std::move(given), options)),
        order(launch_order(parameters, options)),
        reducer(order, names_of(parameters)) {
    if (group.world_size() > 1)
      worker_sdk::require_agreement(group, worker_sdk::signature(parameters, options));
    allocate();
    if (options.broadcast_at_start && group.world_size() > 1) broadcast_values();
    zero();
  }

  void allocate() {
    gradients.resize(parameters.size());
    home.resize(parameters.size());
    for (std::size_t b = 0; b < order.size(); ++b) {
      std::vector<PackItem> items;
      for (const std::size_t p : order[b]) {
        items.push_back({parameters[p].value.type, parameters[p].value.count});
      }
      const BucketLayout layout = worker_sdk::lay_out(items, group.world_size());
      const DataType type = items.front().type;
      auto memory = group.allocate(layout.bytes);
      for (std::size_t k = 0; k < items.size(); ++k) {
        gradients[order[b][k]] = {static_cast<char*>(memory.get()) + layout.offsets[k],
                                  items[k].count, type};
        home[order[b][k]] = b;
      }
      const Buffer flat{memory.get(), layout.bytes / size_of(type), type};
      buckets.push_back({order[b], std::move(memory), flat, Work()});
    }
  }

  // Gradient buffers are not needed yet, so they carry the values: one broadcast a bucket.
  void broadcast_values() {
    for (const Bucket& bucket : buckets) {
      for (const std::size_t p : bucket.parameters) {
        if (group.rank() == 0) copy(parameters[p].value, gradients[p]);
      }
      group.broadcast(bucket.flat, 0);
      for (const std::size_t p : bucket.parameters) {
        if (group.rank() != 0) copy(gradients[p], parameters[p].value);
      }
    }
  }

  static void copy(const Buffer& from, const Buffer& to) {
    if (from.count > 0) std::memcpy(to.data, from.data, from.bytes());
  }

  void zero() {
    for (const Bucket& bucket : buckets) {
      if (bucket.flat.count > 0) std::memset(bucket.flat.data, 0, bucket.flat.bytes());
    }
  }

  void launch(Reducer::Released released) {
    for (std::size_t b = released.first; b < released.last; ++b) {
      buckets[b].work = group.all_reduce_async(buckets[b].flat, ReduceOp::avg);
      launched = b + 1;
    }
  }

  // Waits for all that was launched; the first error counts.
  std::exception_ptr drain() {
    std::exception_ptr error;
    for (std::size_t b = 0; b < launched; ++b) {
      try {
        buckets[b].work.wait();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    return error;
  }

  void account(Clock::duration waited) {
    last = {.steps = 1,
            .exposed = std::chrono::duration_cast<std::chrono::nanoseconds>(waited),
            .buckets = static_cast<int>(launched)};
    for (const Bucket& bucket : buckets) {
      last.comm += bucket.work.duration();
      last.bytes += bucket.flat.bytes();
    }
    total.steps += 1;
    total.comm += last.comm;
    total.exposed += last.exposed;
    total.bytes += last.bytes;
    total.buckets += last.buckets;
  }

  void require(const Result<void>& result) const {
    if (result.has_error()) refuse(group, result.error().context);
  }

  ProcessGroup& group;
  std::vector<Parameter> parameters;
  std::vector<std::vector<std::size_t>> order;

  std::mutex mutex;  // Guards what follows: gradients may be marked from any thread.
  Reducer reducer;
  std::vector<Bucket> buckets;
  std::vector<Buffer> gradients;
  std::vector<std::size_t> home;  // The bucket of each parameter.
  std::size_t launched = 0;
  Pass pass = Pass::none;
  int no_sync_depth = 0;
  SyncReport last;
  SyncReport total;
};

DistributedDataParallel::DistributedDataParallel(ProcessGroup& group,
                                                 std::vector<Parameter> parameters,
                                                 const DdpOptions& options)
    : impl_(std::make_unique<Impl>(group, std::move(parameters), options)) {}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel::~DistributedDataParallel() = default;

Buffer DistributedDataParallel::gradient(std::size_t i) { return impl_->gradients.at(i); }

std::shared_ptr<void> DistributedDataParallel::gradient_memory(std::size_t i) const {
  return impl_->buckets[impl_->home.at(i)].memory;
}

void DistributedDataParallel::zero_gradients() {
  const std::lock_guard lock(impl_->mutex);
  impl_->zero();
}

void DistributedDataParallel::begin_backward() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->no_sync_depth > 0 && impl_->pass == Impl::Pass::none) {
    impl_->pass = Impl::Pass::local;
    return;
  }
  impl_->require(impl_->reducer.begin());
  impl_->launched = 0;
  impl_->pass = Impl::Pass::synchronised;
}

void DistributedDataParallel::mark_ready(std::size_t i) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->pass == Impl::Pass::local) return;
  const auto released = impl_->reducer.mark_ready(i);
  if (released.has_error()) refuse(impl_->group, released.error().context);
  impl_->launch(*released);
}

void DistributedDataParallel::finish_backward() {
  const std::lock_guard lock(impl_->mutex);
  if (std::exchange(impl_->pass, Impl::Pass::none) == Impl::Pass::local) return;
  const auto finished = impl_->reducer.finish();
  const auto start = Clock::now();
  const std::exception_ptr error = impl_->drain();
  impl_->require(finished);
  if (error) std::rethrow_exception(error);
  impl_->account(Clock::now() - start);
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  const std::lock_guard lock(ddp_.impl_->mutex);
  ++ddp_.impl_->no_sync_depth;
}

DistributedDataParallel::NoSync::~NoSync() {
  const std::lock_guard lock(ddp_.impl_->mutex);
  --ddp_.impl_->no_sync_depth;
}

bool DistributedDataParallel::synchronises() const noexcept { return impl_->no_sync_depth == 0; }
const SyncReport& DistributedDataParallel::last_step() const noexcept { return impl_->last; }
SyncReport DistributedDataParallel::total() const noexcept { return impl_->total; }
std::vector<std::vector<std::size_t>> DistributedDataParallel::buckets() const {
  return impl_->order;
}

}  // namespace ddprun
