// ddprun/c/c_training.h: DistributedDataParallel, sampler, clipping.

#include "ddprun/clip_grad_norm.h"
#include "worker_sdk/c/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

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

}  // namespace

extern "C" {

ddprun_status ddprun_ddp_create(ddprun_group* group, const ddprun_parameter* parameters,
                                size_t count, const ddprun_ddp_options* options, ddprun_ddp** ddp) {
  return guarded([&] {
    require_argument(group && ddp, "a handle is null");
    *ddp = nullptr;
    const auto given = options_of(options);
    DdpOptions wanted;
    if (given.first_bucket_bytes) wanted.first_bucket_bytes = given.first_bucket_bytes;
    if (given.bucket_bytes) wanted.bucket_bytes = given.bucket_bytes;
    wanted.find_unused = given.find_unused != 0;
    wanted.static_graph = given.static_graph != 0;
    require_argument(std::in_range<int>(given.checksum_every), "checksum_every is out of range");
    wanted.checksum_every = static_cast<int>(given.checksum_every);
    *ddp = new ddprun_ddp{
        DistributedDataParallel(group->group, parameters_of(parameters, count), wanted), count};
  });
}

void ddprun_ddp_destroy(ddprun_ddp* ddp) { delete ddp; }

ddprun_status ddprun_ddp_gradient(ddprun_ddp* ddp, size_t parameter, ddprun_buffer* gradient) {
  return guarded([&] {
    require_argument(ddp && gradient, "a handle is null");
    require_argument(parameter < ddp->parameters, "there is no such parameter");
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
    require_argument(ddp, "a handle is null");
    if (synchronise) {
      ddp->no_sync.reset();
    } else if (!ddp->no_sync) {
      ddp->no_sync.emplace(ddp->ddp);
    }
    ddp->ddp.begin_backward();
  });
}

ddprun_status ddprun_ddp_mark_ready(ddprun_ddp* ddp, size_t parameter) {
  return guarded([&] {
    require_argument(parameter < live(ddp).parameters, "there is no such parameter");
    ddp->ddp.mark_ready(parameter);
  });
}

ddprun_status ddprun_ddp_finish_backward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.finish_backward(); });
}

ddprun_status ddprun_ddp_cancel_backward(ddprun_ddp* ddp) {
  return guarded([&] { live(ddp).ddp.cancel_backward(); });
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

ddprun_status ddprun_clip_grad_norm(const ddprun_buffer* gradients, size_t count, double max_norm,
                                    double norm_type, int error_if_nonfinite, double* norm) {
  return guarded([&] {
    require_argument(norm, "a pointer is null");
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < count; ++i) {
      const ddprun_buffer gradient = struct_of(gradients, i);
      buffers.push_back(buffer_of(&gradient));
    }
    *norm = clip_grad_norm(buffers, max_norm,
                           {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite != 0});
  });
}

}  // extern "C"
