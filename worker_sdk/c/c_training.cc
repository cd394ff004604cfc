// ddprun/c/c_training.h: clipping of gradients, and scaling of losses.

#include "ddprun/clip_grad_norm.h"

#include "ddprun/grad_scaler.h"
#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_scaler {
  GradScaler scaler;
};

namespace {

std::vector<Buffer> buffers_of(const ddprun_buffer* arrays, std::size_t count) {
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < count; ++i) {
    const ddprun_buffer next = struct_of(arrays, i);
    buffers.push_back(buffer_of(&next));
  }
  return buffers;
}

ClipOptions clip_options_of(double norm_type, int error_if_nonfinite) {
  return {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite != 0};
}

GradScalerOptions scaler_options_of(const ddprun_scaler_options* options) {
  const auto given = options_of(options);
  GradScalerOptions wanted;
  if (given.init_scale != 0) wanted.init_scale = given.init_scale;
  if (given.growth_factor != 0) wanted.growth_factor = given.growth_factor;
  if (given.backoff_factor != 0) wanted.backoff_factor = given.backoff_factor;
  if (given.growth_interval != 0) wanted.growth_interval = given.growth_interval;
  wanted.enabled = given.disabled == 0;
  return wanted;
}

}  // namespace

extern "C" {

ddprun_status ddprun_clip_grad_norm(const ddprun_buffer* gradients, size_t count, double max_norm,
                                    double norm_type, int error_if_nonfinite, double* norm) {
  return guarded([&] {
    require_argument(norm, "a pointer is null");
    *norm = clip_grad_norm(buffers_of(gradients, count), max_norm,
                           clip_options_of(norm_type, error_if_nonfinite));
  });
}

ddprun_status ddprun_clip_grad_norm_of_parts(ddprun_group* group, const ddprun_buffer* part,
                                             size_t count, double max_norm, double norm_type,
                                             int error_if_nonfinite, double* norm) {
  return guarded([&] {
    require_argument(norm, "a pointer is null");
    *norm = clip_grad_norm(live(group).group, buffers_of(part, count), max_norm,
                           clip_options_of(norm_type, error_if_nonfinite));
  });
}

ddprun_status ddprun_scaler_create(const ddprun_scaler_options* options, ddprun_scaler** scaler) {
  return guarded([&] {
    require_argument(scaler, "the place for the handle is null");
    *scaler = nullptr;
    *scaler = new ddprun_scaler{GradScaler(scaler_options_of(options))};
  });
}

void ddprun_scaler_destroy(ddprun_scaler* scaler) { delete scaler; }

ddprun_status ddprun_scaler_scale(const ddprun_scaler* scaler, double* scale) {
  return guarded([&] {
    require_argument(scale, "a pointer is null");
    *scale = live(scaler).scaler.scale();
  });
}

ddprun_status ddprun_scaler_unscale(ddprun_scaler* scaler, ddprun_group* group,
                                    const ddprun_buffer* gradients, size_t count, int* finite) {
  return guarded([&] {
    const auto buffers = buffers_of(gradients, count);
    GradScaler& mine = live(scaler).scaler;
    const bool all = group ? mine.unscale(group->group, buffers) : mine.unscale(buffers);
    if (finite) *finite = all ? 1 : 0;
  });
}

ddprun_status ddprun_scaler_unscaled(ddprun_scaler* scaler, int finite) {
  return guarded([&] { live(scaler).scaler.unscaled(finite != 0); });
}

int ddprun_scaler_may_step(const ddprun_scaler* scaler) {
  return answer(-1, [&] { return live(scaler).scaler.may_step() ? 1 : 0; });
}

ddprun_status ddprun_scaler_update(ddprun_scaler* scaler) {
  return guarded([&] { live(scaler).scaler.update(); });
}

ddprun_status ddprun_scaler_state(const ddprun_scaler* scaler, double* scale, int* growth_tracker) {
  return guarded([&] {
    require_argument(scale && growth_tracker, "a pointer is null");
    *scale = live(scaler).scaler.state().scale;
    *growth_tracker = scaler->scaler.state().growth_tracker;
  });
}

ddprun_status ddprun_scaler_load(ddprun_scaler* scaler, double scale, int growth_tracker) {
  return guarded(
      [&] { live(scaler).scaler.load({.scale = scale, .growth_tracker = growth_tracker}); });
}

}  // extern "C"

// ddprun/c/c_training.h: DistributedDataParallel and the sampler. c_training.cc has the rest.

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

// ddprun_power_sgd_options has doubles, so kGrows cannot check it.
static_assert(kGrows<ddprun_parameter> && kGrows<ddprun_ddp_options> &&
              kGrows<ddprun_sync_report> && kGrows<ddprun_sampler_options>);

std::vector<Parameter> parameters_of(const ddprun_parameter* parameters, std::size_t count) {
  std::vector<Parameter> result;
  for (std::size_t i = 0; i < count; ++i) {
    const ddprun_parameter p = struct_of(parameters, i);
    const ddprun_buffer value{sizeof value, p.data, p.count, p.type, p.reserved};
    Parameter next{p.name ? p.name : "", buffer_of(&value), {}};
    next.shape = {static_cast<std::int64_t>(p.count)};
    if (p.shape) next.shape.assign(p.shape, p.shape + p.dimensions);
    result.push_back(std::move(next));
  }
  return result;
}

int int_of(std::int64_t number, const char* text) {
  require_argument(std::in_range<int>(number), text);
  return static_cast<int>(number);
}

CommHookFactory power_sgd_of(const ddprun_power_sgd_options* options) {
  const auto given = options_of(options);
  hooks::PowerSgdOptions wanted;
  if (given.rank) wanted.rank = int_of(given.rank, "the rank of power_sgd is out of range");
  wanted.start_step = int_of(given.start_step, "start_step is out of range");
  if (given.min_compression_rate != 0) wanted.min_compression_rate = given.min_compression_rate;
  wanted.orthogonalization_epsilon = given.orthogonalization_epsilon;
  wanted.seed = given.seed;
  wanted.use_error_feedback = given.no_error_feedback == 0;
  wanted.warm_start = given.cold_start == 0;
  return hooks::power_sgd(wanted);
}

CommHookFactory hook_of(const ddprun_ddp_options& given) {
  switch (given.hook) {
    case DDPRUN_HOOK_ALL_REDUCE: return {};
    case DDPRUN_HOOK_FP16: return hooks::fp16();
    case DDPRUN_HOOK_BF16: return hooks::bf16();
    case DDPRUN_HOOK_NOOP: return hooks::noop();
    case DDPRUN_HOOK_POWER_SGD: return power_sgd_of(given.power_sgd);
    default: throw Error(ErrorKind::bad_argument, {}, "there is no such hook");
  }
}

DdpOptions ddp_options_of(const ddprun_ddp_options* options) {
  const auto given = options_of(options);
  DdpOptions wanted;
  if (given.first_bucket_bytes) wanted.first_bucket_bytes = given.first_bucket_bytes;
  if (given.bucket_bytes) wanted.bucket_bytes = given.bucket_bytes;
  wanted.broadcast_at_start = given.keep_at_start == 0;
  wanted.find_unused = given.find_unused != 0;
  wanted.static_graph = given.static_graph != 0;
  wanted.uneven_inputs = given.uneven_inputs != 0;
  wanted.checksum_every = int_of(given.checksum_every, "checksum_every is out of range");
  wanted.hook = hook_of(given);
  const int window = int_of(given.window, "window is out of range");
  require_argument(window >= -1, "window must not be below -1");
  if (window != 0) wanted.timer.window = std::max(window, 0);
  wanted.timer.print = given.print != 0;
  if (given.json_file) wanted.timer.json_file = given.json_file;
  if (given.trace_folder) wanted.timer.trace_folder = given.trace_folder;
  return wanted;
}

// A pass within no_sync() lasts as long as ddprun_ddp::no_sync.
void set_synchronise(ddprun_ddp& ddp, bool synchronise) {
  if (synchronise) return ddp.no_sync.reset();
  if (!ddp.no_sync) ddp.no_sync.emplace(ddp.ddp);
}

void require_parameter(const ddprun_ddp* ddp, std::size_t parameter) {
  require_argument(parameter < live(ddp).parameters, "there is no such parameter");
}

}  // namespace

extern "C" {

ddprun_status ddprun_ddp_create(ddprun_group* group, const ddprun_parameter* parameters,
                                size_t count, const ddprun_ddp_options* options, ddprun_ddp** ddp) {
  return guarded([&] {
    require_argument(group && ddp, "a handle is null");
    *ddp = nullptr;
    *ddp = new ddprun_ddp{DistributedDataParallel(group->group, parameters_of(parameters, count),
                                                  ddp_options_of(options)),
                          count};
  });
}

void ddprun_ddp_destroy(ddprun_ddp* ddp) { delete ddp; }

ddprun_status ddprun_ddp_gradient(ddprun_ddp* ddp, size_t parameter, ddprun_buffer* gradient) {
  return guarded([&] {
    require_argument(ddp && gradient, "a handle is null");
    require_parameter(ddp, parameter);
    ddprun_buffer found = struct_of(gradient);
    const Buffer g = ddp->ddp.gradient(parameter);
    found.data = g.data;
    found.count = g.count;
    found.type = static_cast<ddprun_type>(g.type);
    std::memcpy(gradient, &found, found.size);
  });
}

ddprun_status ddprun_ddp_zero_gradients(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.zero_gradients(); });
}

ddprun_status ddprun_ddp_begin_backward(ddprun_ddp* ddp, int synchronise) {
  return guarded([&] {
    set_synchronise(live(ddp), synchronise != 0);
    ddp->ddp.begin_backward();
  });
}

ddprun_status ddprun_ddp_begin_backward_without(ddprun_ddp* ddp, int synchronise,
                                                const size_t* unused, size_t count) {
  return guarded([&] {
    require_argument(unused || count == 0, "the list of parameters is null");
    for (std::size_t i = 0; i < count; ++i) require_parameter(ddp, unused[i]);
    set_synchronise(live(ddp), synchronise != 0);
    ddp->ddp.begin_backward({unused, count});
  });
}

ddprun_status ddprun_ddp_mark_ready(ddprun_ddp* ddp, size_t parameter) {
  return guarded([&] {
    require_parameter(ddp, parameter);
    ddp->ddp.mark_ready(parameter);
  });
}

ddprun_status ddprun_ddp_finish_backward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.finish_backward(); });
}

ddprun_status ddprun_ddp_cancel_backward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.cancel_backward(); });
}

ddprun_status ddprun_ddp_used(const ddprun_ddp* ddp, size_t parameter, int* used) {
  return guarded([&] {
    require_argument(used, "a pointer is null");
    require_parameter(ddp, parameter);
    *used = ddp->ddp.used(parameter) ? 1 : 0;
  });
}

ddprun_status ddprun_ddp_rebuild(ddprun_ddp* ddp, int* moved) {
  return guarded([&] {
    require_argument(moved, "a pointer is null");
    *moved = live(ddp).ddp.rebuild() ? 1 : 0;
  });
}

ddprun_status ddprun_ddp_join(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.join(); });
}

ddprun_status ddprun_ddp_set_value(ddprun_ddp* ddp, size_t parameter, const ddprun_buffer* value) {
  return guarded([&] {
    require_parameter(ddp, parameter);
    ddp->ddp.set_value(parameter, buffer_of(value));
  });
}

ddprun_status ddprun_ddp_reconfigure(ddprun_ddp* ddp, ddprun_group* next) {
  return guarded([&] { live(ddp).ddp.reconfigure(live(next).group); });
}

ddprun_status ddprun_ddp_last_step(const ddprun_ddp* ddp, int64_t* comm_ns, int64_t* exposed_ns) {
  return guarded([&] {
    require_argument(ddp && comm_ns && exposed_ns, "a pointer is null");
    *comm_ns = ddp->ddp.last_step().comm.count();
    *exposed_ns = ddp->ddp.last_step().exposed.count();
  });
}

ddprun_status ddprun_ddp_report(const ddprun_ddp* ddp, int of_all, ddprun_sync_report* report) {
  return guarded([&] {
    const SyncReport r = of_all ? live(ddp).ddp.total() : live(ddp).ddp.last_step();
    fill(report,
         {0, r.steps, r.comm.count(), r.exposed.count(), r.contended.count(), r.outside.count(),
          r.forward.count(), r.backward.count(), r.waited.count(), r.unknown.count(), r.bytes,
          r.buckets, r.dropped, r.data.count(), r.optimizer.count()});
  });
}

ddprun_status ddprun_ddp_begin_forward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.begin_forward(); });
}

ddprun_status ddprun_ddp_end_forward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.end_forward(); });
}

ddprun_status ddprun_ddp_window_json(const ddprun_ddp* ddp, const char** json) {
  return guarded([&] {
    thread_local std::string kept;
    require_argument(json, "a pointer is null");
    const auto window = live(ddp).ddp.last_window();
    kept = window ? to_json(*window) : "";
    *json = kept.c_str();
  });
}

ddprun_status ddprun_sampler_create(const ddprun_sampler_options* options,
                                    ddprun_sampler** sampler) {
  return guarded([&] {
    require_argument(options && sampler, "a pointer is null");
    *sampler = nullptr;
    const auto given = options_of(options);
    *sampler = new ddprun_sampler{DistributedSampler(
        {.length = given.length, .world_size = given.world_size, .rank = given.rank},
        {.shuffle = given.shuffle != 0, .seed = given.seed, .drop_last = given.drop_last != 0})};
  });
}

void ddprun_sampler_destroy(ddprun_sampler* sampler) { delete sampler; }

ddprun_status ddprun_sampler_set_epoch(ddprun_sampler* sampler, int64_t epoch) {
  return guarded([&] { live(sampler).sampler.set_epoch(epoch); });
}

ddprun_status ddprun_sampler_indices(ddprun_sampler* sampler, const int64_t** indices,
                                     size_t* count) {
  return guarded([&] {
    require_argument(sampler && indices && count, "a pointer is null");
    sampler->indices = live(sampler).sampler.indices();
    *indices = sampler->indices.data();
    *count = sampler->indices.size();
  });
}

ddprun_status ddprun_sampler_advance(ddprun_sampler* sampler, int64_t count) {
  return guarded([&] { live(sampler).sampler.advance(count); });
}

ddprun_status ddprun_sampler_state(const ddprun_sampler* sampler, int64_t* epoch,
                                   int64_t* consumed) {
  return guarded([&] {
    require_argument(sampler && epoch && consumed, "a pointer is null");
    *epoch = sampler->sampler.state().epoch;
    *consumed = sampler->sampler.state().consumed;
  });
}

ddprun_status ddprun_sampler_load(ddprun_sampler* sampler, int64_t epoch, int64_t consumed) {
  return guarded([&] { live(sampler).sampler.load({.epoch = epoch, .consumed = consumed}); });
}

ddprun_status ddprun_sampler_counts(const ddprun_sampler* sampler, int64_t* per_epoch,
                                    int64_t* remaining) {
  return guarded([&] {
    require_argument(per_epoch && remaining, "a pointer is null");
    *per_epoch = live(sampler).sampler.num_samples();
    *remaining = sampler->sampler.remaining();
  });
}

}  // extern "C"
