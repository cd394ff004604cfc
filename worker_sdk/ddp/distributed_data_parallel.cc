// DistributedDataParallel before its first pass: arguments, agreement with the other ranks, memory;
// and the rebuilding of the buckets after it.

#include "ddprun/distributed_data_parallel.h"

#include <cstdio>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include "worker_sdk/ddp/agreement.h"
#include "worker_sdk/ddp/bucket_flow.h"
#include "worker_sdk/ddp/buckets.h"
#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/timer/timer_shell.h"

namespace ddprun {

struct DistributedDataParallel::Impl {
  enum class Pass { kNone, kLocal, kSynchronised };

  Impl(ProcessGroup& g, std::vector<Parameter> given, const DdpOptions& wanted);

  void connect(ProcessGroup& g);  // The constructor's second half, and reconfigure().
  std::unique_ptr<worker_sdk::BucketSet> make_buckets(worker_sdk::BucketOrder order);
  bool rebuild();
  void complain_if_unfinished() const noexcept;  // For the destructor.
  [[noreturn]] void refuse(const std::string& text) const;
  void require_parameter(std::size_t i) const;
  template <class T>
  void require(const Result<T>& result) const {
    if (result.has_error()) refuse(result.error().context);
  }

  void begin(std::span<const std::size_t> unused);
  void begin_synchronised(std::span<const std::size_t> unused);
  void check_capture() const;
  void mark(std::size_t i);
  void finish();
  void cancel();
  void join();
  int live_ranks(bool has_input);
  void shadow_pass();
  void take_values_of_last();
  void check_values();
  void launch(worker_sdk::Reducer::Released released);

  const DdpOptions options;
  ProcessGroup group;  // A handle of our own: the caller's may be moved from or end.
  std::vector<Parameter> parameters;

  // Guards the members below: gradients may be marked from any thread. Recursive, as a callback may
  // call in again.
  std::recursive_mutex mutex;
  worker_sdk::Reducer reducer;
  std::unique_ptr<worker_sdk::BucketSet> buckets;
  worker_sdk::BucketFlow flow;
  std::unique_ptr<worker_sdk::TimerShell> timer;
  std::vector<bool> touched;  // Marked in a local pass since the last synchronised one.
  bool rebuilt = false;
  Pass pass = Pass::kNone;
  int no_sync_depth = 0;
  std::int64_t passes = 0;  // Synchronised ones of this rank's own, since connect().
};

// Access to the members for as long as it is held: public calls access them only in this way.
class DistributedDataParallel::Locked {
 public:
  explicit Locked(Impl& impl) : impl_(impl), lock_(impl.mutex) {}
  Impl* operator->() const { return &impl_; }

 private:
  Impl& impl_;
  const std::unique_lock<std::recursive_mutex> lock_;
};

namespace {

[[noreturn]] void refuse_for(const ProcessGroup& group, const std::string& text) {
  throw Error(ErrorKind::bad_argument,
              {.rank = group.rank(),
               .host = group.host_of(group.rank()),
               .operation = "DistributedDataParallel"},
              text);
}

void check_parameter(const ProcessGroup& group, const Parameter& p, bool needs_value) {
  const DataType type = p.value.type;
  if (!is_floating(type)) {
    refuse_for(group, "parameter " + p.name + " is of type " + name_of(type) +
                          "; only floating-point gradients can be averaged");
  }
  std::size_t count = 1;
  for (const std::int64_t extent : p.shape) count *= static_cast<std::size_t>(extent);
  if (count != p.value.count) {
    refuse_for(group, "parameter " + p.name + " has " + std::to_string(p.value.count) +
                          " elements, but its shape " + std::to_string(count));
  }
  if (needs_value && count > 0 && p.value.data == nullptr) {
    refuse_for(group, "parameter " + p.name + " has no value to broadcast");
  }
}

std::vector<Parameter> checked(const ProcessGroup& group, std::vector<Parameter> parameters,
                               const DdpOptions& options) {
  if (options.uneven_inputs && options.checksum_every > 0) {
    refuse_for(group,
               "uneven_inputs and checksum_every exclude each other: a rank that has joined "
               "no longer steps its values");
  }
  if (options.checksum_every < 0 || options.timer.window < 0) {
    refuse_for(group, "checksum_every and timer.window must not be negative");
  }
  if (parameters.empty()) refuse_for(group, "there are no parameters to train");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.empty()) parameters[i].name.append("#").append(std::to_string(i));
    check_parameter(group, parameters[i], true);
  }
  return parameters;
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters) names.push_back(p.name);
  return names;
}

worker_sdk::ReducerRules rules_of(const DdpOptions& options) {
  const bool find_unused = options.find_unused && !options.static_graph;
  return {
      .hold_first = !find_unused, .find_unused = find_unused, .static_graph = options.static_graph};
}

}  // namespace

DistributedDataParallel::Impl::Impl(ProcessGroup& g, std::vector<Parameter> given,
                                    const DdpOptions& wanted)
    : options(wanted),
      group(g.share()),
      parameters(checked(g, std::move(given), wanted)),
      reducer(worker_sdk::expected_order(parameters, options), names_of(parameters),
              rules_of(options)),
      touched(parameters.size(), false) {
  connect(g);
}

void DistributedDataParallel::Impl::connect(ProcessGroup& g) {
  group = g.share();
  auto hook = (options.hook ? options.hook : hooks::all_reduce())(group);
  if (!hook) refuse_for(g, "DdpOptions::hook returns no hook");
  const CommHookTraits& traits = hook->traits();
  if (traits.computes_on_host && g.backend() == "nccl") {
    refuse_for(g, "the hook " + traits.name +
                      " computes on the host, which the arrays of nccl are not on");
  }
  if (group.world_size() > 1) {
    worker_sdk::require_agreement(group, worker_sdk::signature(parameters, options, traits.name));
  }
  flow.use(std::move(hook));
  const auto order = worker_sdk::expected_order(parameters, options);
  reducer.reset(order);
  auto next = make_buckets(order);
  flow.use(group, *next);
  buckets = std::move(next);
  if (options.broadcast_at_start && group.world_size() > 1) {
    buckets->broadcast_values(group, parameters, 0);
  }
  buckets->zero(group);
  timer = std::make_unique<worker_sdk::TimerShell>(group, options.timer);
  touched.assign(parameters.size(), false);
  rebuilt = options.find_unused && !options.static_graph;  // No order to rebuild from.
  pass = Pass::kNone;
  passes = 0;
}

std::unique_ptr<worker_sdk::BucketSet> DistributedDataParallel::Impl::make_buckets(
    worker_sdk::BucketOrder order) {
  const bool tail = options.find_unused || options.static_graph;
  return std::make_unique<worker_sdk::BucketSet>(group, parameters, std::move(order), tail);
}

// All ranks take rank 0's order, as they may have seen different ones.
bool DistributedDataParallel::Impl::rebuild() {
  if (rebuilt || !reducer.has_order() || pass != Pass::kNone) return false;
  rebuilt = true;
  std::vector<std::int64_t> arrival;
  for (const std::size_t p : reducer.arrival()) arrival.push_back(static_cast<std::int64_t>(p));
  if (group.world_size() > 1) {
    group.broadcast(buffer(arrival.data(), arrival.size()), 0, {.on_host = true});
  }
  auto order = worker_sdk::order_of_arrival(parameters, options, {arrival.begin(), arrival.end()});
  if (order == buckets->order()) return false;
  // Keep the old buckets until the new ones have everything: a peer may be lost meanwhile.
  auto next = make_buckets(order);
  next->take_over(group, *buckets);
  reducer.regroup(order);
  flow.use(group, *next);
  buckets = std::move(next);
  // On a device the memory is freed only when all ranks have released it (nccl_memory.h).
  if (worker_sdk::GroupInside::device(group)) group.barrier();
  return true;
}

// Not if an exception unwinds the program's scopes or the group has failed: those errors are
// reported themselves.
void DistributedDataParallel::Impl::complain_if_unfinished() const noexcept {
  if (pass == Pass::kNone || std::uncaught_exceptions() > 0) return;
  if (worker_sdk::GroupInside::is_dead(group)) return;
  std::fprintf(
      stderr,
      "ddprun: rank %d: a DistributedDataParallel has ended inside a backward pass: without "
      "finish_backward() its gradients are not averaged\n",
      group.rank());
}

void DistributedDataParallel::Impl::refuse(const std::string& text) const {
  refuse_for(group, text);
}

void DistributedDataParallel::Impl::require_parameter(std::size_t i) const {
  if (i < parameters.size()) return;
  refuse("there is no parameter " + std::to_string(i) + ", only " +
         std::to_string(parameters.size()));
}

// The backward passes of DistributedDataParallel: carries out the decisions of the pure reducer.

using worker_sdk::Reducer;

void DistributedDataParallel::Impl::begin(std::span<const std::size_t> unused) {
  if (pass == Pass::kLocal) {
    refuse("begin_backward() was called twice without finish_backward() between");
  }
  if (no_sync_depth > 0 && pass == Pass::kNone) {
    timer->begin_backward();
    pass = Pass::kLocal;
    return;
  }
  require(reducer.check_begin(unused));  // Before anything collective.
  check_capture();
  if (options.uneven_inputs) live_ranks(true);
  begin_synchronised(unused);
  ++passes;
}

// Work of the host in a pass is done when a graph is captured, not when it is launched.
void DistributedDataParallel::Impl::check_capture() const {
  auto* device = worker_sdk::GroupInside::device(group);
  const auto stream = worker_sdk::GroupInside::stream(group);
  if (!device || !stream || !device->captured(*stream)) return;
  const std::string graph = "a CUDA graph cannot hold a pass ";
  if (options.find_unused || options.static_graph) {
    refuse(graph + "with find_unused or static_graph: the host records which parameters were used");
  }
  if (options.uneven_inputs || options.checksum_every > 0) {
    refuse(graph + "with uneven_inputs or checksum_every: the hosts communicate");
  }
  if (!rebuilt) {
    refuse(graph +
           "before the buckets have their final order: run an ordinary pass first, then rebuild()");
  }
}

void DistributedDataParallel::Impl::begin_synchronised(std::span<const std::size_t> unused) {
  rebuild();
  check_values();
  timer->begin_backward();
  flow.begin();
  pass = Pass::kSynchronised;
  const auto released = reducer.begin(unused);
  require(released);
  launch(*released);
}

void DistributedDataParallel::Impl::check_values() {
  const bool due = options.checksum_every > 0 && passes > 0 && passes % options.checksum_every == 0;
  if (due && group.world_size() > 1) worker_sdk::require_equal_values(group, parameters);
}

void DistributedDataParallel::Impl::mark(std::size_t i) {
  if (pass == Pass::kLocal) {
    require_parameter(i);
    touched[i] = true;
    return;
  }
  const auto released = reducer.mark_ready(i);
  require(released);
  launch(*released);
  flow.poll();
}

// The last bucket carries which parameters were used, which is known when that bucket is released.
void DistributedDataParallel::Impl::launch(Reducer::Released released) {
  for (std::size_t b = released.first; b < released.last; ++b) {
    if (b + 1 == buckets->size()) {
      for (std::size_t p = 0; p < touched.size(); ++p) {
        touched[p] = touched[p] || reducer.marked(p);
      }
      buckets->write_tail(group, touched);
    }
    flow.start(b);
  }
}

void DistributedDataParallel::Impl::finish() {
  const Pass before = std::exchange(pass, Pass::kNone);
  if (before == Pass::kLocal) return timer->end_local();
  timer->begin_wait();
  const auto rest = reducer.finish();
  std::exception_ptr error;
  try {
    if (rest) launch(*rest);
    // The peers wait for this rank's part, as in cancel().
    if (!rest && before == Pass::kSynchronised) launch(reducer.left_over());
  } catch (...) {
    error = std::current_exception();
  }
  if (const auto later = flow.complete(); !error) error = later;
  buckets->tail_has_come();
  if (error || rest.has_error()) timer->end_local();
  if (error) std::rethrow_exception(error);
  require(rest);
  touched.assign(touched.size(), false);
  timer->end_step(flow.take_times(), flow.take_marks());
}

// The peers wait for this rank's part of each bucket, wherever it gave up. So it sends what it has.
void DistributedDataParallel::Impl::cancel() {
  if (std::exchange(pass, Pass::kNone) != Pass::kSynchronised) return timer->end_local();
  std::exception_ptr error;
  try {
    launch(reducer.cancel());
  } catch (...) {
    error = std::current_exception();
  }
  if (const auto later = flow.complete(); !error) error = later;
  buckets->tail_has_come();
  touched.assign(touched.size(), false);
  timer->end_local();
  if (error) std::rethrow_exception(error);
}

int DistributedDataParallel::Impl::live_ranks(bool has_input) {
  std::int64_t live = has_input ? 1 : 0;
  group.all_reduce(buffer(&live, 1), ReduceOp::sum, {.on_host = true});
  return static_cast<int>(live);
}

void DistributedDataParallel::Impl::join() {
  if (!options.uneven_inputs) refuse("join() needs DdpOptions::uneven_inputs on all ranks");
  if (pass != Pass::kNone) refuse("join() was called inside a backward pass");
  while (live_ranks(false) > 0) shadow_pass();
  take_values_of_last();
  buckets->zero(group);
  passes = 0;
}

// Takes part in the collectives of a pass, in its order, without contributing anything.
void DistributedDataParallel::Impl::shadow_pass() {
  buckets->zero(group);
  begin_synchronised({});
  const bool may_miss = options.find_unused && !options.static_graph;
  for (std::size_t p = parameters.size(); !may_miss && p-- > 0;) {
    for (std::size_t k = reducer.expected(p); k > 0; --k) mark(p);
  }
  finish();
}

// Ranks that joined early have not stepped since.
void DistributedDataParallel::Impl::take_values_of_last() {
  std::int64_t best = passes * group.world_size() + group.rank();
  group.all_reduce(buffer(&best, 1), ReduceOp::max, {.on_host = true});
  buckets->broadcast_values(group, parameters, static_cast<int>(best % group.world_size()));
}

// The public functions of DistributedDataParallel: they take the lock and call the functions above.
// Which parameters share a bucket is decided in buckets.cc, the check that ranks agree is in
// agreement.cc.

namespace {

// A step that fails for more than a misused call leaves its trace.
template <class Timer, class Body>
void traced(Timer& timer, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_argument) timer.failed();
    throw;
  }
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(ProcessGroup& group,
                                                 std::vector<Parameter> parameters,
                                                 const DdpOptions& options)
    : impl_(std::make_unique<Impl>(group, std::move(parameters), options)) {}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;

DistributedDataParallel& DistributedDataParallel::operator=(
    DistributedDataParallel&& other) noexcept {
  if (this != &other) {
    const DistributedDataParallel ended_first(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

DistributedDataParallel::~DistributedDataParallel() {
  if (!impl_) return;
  if (worker_sdk::GroupInside::is_forked_child(impl_->group)) {
    static_cast<void>(impl_.release());  // As for a group: operations in progress are the parent's.
    return;
  }
  impl_->complain_if_unfinished();
}

DistributedDataParallel::Impl& DistributedDataParallel::inside() const {
  if (impl_) return *impl_;
  throw Error(ErrorKind::bad_argument, {.operation = "DistributedDataParallel"},
              "this DistributedDataParallel was moved from; use the one that it was moved into");
}

DistributedDataParallel::Locked DistributedDataParallel::locked() const { return Locked(inside()); }

// Without the lock: a caller that holds it may wait for writers of gradients, such as a stream's
// work.
Buffer DistributedDataParallel::gradient(std::size_t i) {
  inside().require_parameter(i);
  return impl_->buckets->gradient(i);
}

std::shared_ptr<void> DistributedDataParallel::gradient_memory(std::size_t i) const {
  inside().require_parameter(i);
  return impl_->buckets->memory(i);
}

void DistributedDataParallel::zero_gradients() {
  const Locked in = locked();
  in->buckets->zero(in->group);
}

void DistributedDataParallel::begin_forward() {
  const Locked in = locked();
  in->timer->begin_forward();
}

void DistributedDataParallel::end_forward() {
  const Locked in = locked();
  in->timer->begin_backward();
}

void DistributedDataParallel::begin_backward(std::span<const std::size_t> unused) {
  const Locked in = locked();
  traced(*in->timer, [&] { in->begin(unused); });
}

void DistributedDataParallel::mark_ready(std::size_t i) {
  const Locked in = locked();
  in->mark(i);
}

void DistributedDataParallel::finish_backward() {
  const Locked in = locked();
  traced(*in->timer, [&] { in->finish(); });
}

void DistributedDataParallel::cancel_backward() {
  const Locked in = locked();
  if (in->pass != Impl::Pass::kNone) traced(*in->timer, [&] { in->cancel(); });
}

bool DistributedDataParallel::used(std::size_t i) const {
  const Locked in = locked();
  in->require_parameter(i);
  return in->buckets->used(in->group, i);
}

bool DistributedDataParallel::rebuild() {
  const Locked in = locked();
  return in->rebuild();
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp.inside()) {
  const std::lock_guard lock(ddp_.mutex);
  ++ddp_.no_sync_depth;
}

DistributedDataParallel::NoSync::~NoSync() {
  const std::lock_guard lock(ddp_.mutex);
  --ddp_.no_sync_depth;
}

bool DistributedDataParallel::synchronises() const {
  const Locked in = locked();
  return in->no_sync_depth == 0;
}

void DistributedDataParallel::join() {
  const Locked in = locked();
  traced(*in->timer, [&] { in->join(); });
}

void DistributedDataParallel::on_bucket_reduced(
    std::function<void(const GradientBucket&)> reduced) {
  const Locked in = locked();
  in->flow.set_reduced(std::move(reduced));
}

void DistributedDataParallel::reconfigure(ProcessGroup& next) {
  const Locked in = locked();
  static_cast<void>(in->flow.complete());  // Its outcome does not matter.
  in->connect(next);
}

void DistributedDataParallel::set_value(std::size_t i, Buffer value) {
  const Locked in = locked();
  in->require_parameter(i);
  Buffer& mine = in->parameters[i].value;
  if (value.count != mine.count || value.type != mine.type) {
    in->refuse("set_value() got an array of another size or type");
  }
  mine = value;
}

SyncReport DistributedDataParallel::last_step() const {
  const Locked in = locked();
  return in->timer->last();
}

SyncReport DistributedDataParallel::total() const {
  const Locked in = locked();
  return in->timer->total();
}

std::optional<SyncWindow> DistributedDataParallel::last_window() const {
  const Locked in = locked();
  return in->timer->window();
}

void DistributedDataParallel::on_window(std::function<void(const SyncWindow&)> on_window_ready) {
  const Locked in = locked();
  in->timer->set_on_window(std::move(on_window_ready));
}

std::string DistributedDataParallel::trace() const {
  const Locked in = locked();
  return in->timer->trace();
}

std::vector<std::vector<std::size_t>> DistributedDataParallel::buckets() const {
  const Locked in = locked();
  return in->buckets->order();
}

}  // namespace ddprun
