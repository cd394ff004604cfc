// One backward pass of DistributedDataParallel after the other: what the pure reducer decides is
// carried out here.

#include <utility>

#include "worker_sdk/ddp/ddp_impl.h"
#include "worker_sdk/ddp/values.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun {

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

// What the host does in a pass is done when a graph is captured, not when it is launched.
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

// The last bucket carries who used what, which is known when that bucket is released.
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

// The peers wait for this rank's part of each bucket, wherever it gave up: so it gives what it has.
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

// The collectives of a pass, in its order, with nothing to contribute.
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

}  // namespace ddprun
