// ddprun/c_api.h: errors, groups' lives, DistributedDataParallel, sampler, clipping. Collectives
// are in c_api_calls.cc.

#include "worker_sdk/group/c_api.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ddprun/clip_grad_norm.h"

namespace ddprun::worker_sdk {
namespace {

// Fixed, so that an error can be told when there is no memory.
thread_local char last_error[2048];
thread_local int last_peer = -1;

ddprun_status remember(ddprun_status status, const char* text, int peer) noexcept {
  const std::size_t length = std::min(std::strlen(text), sizeof last_error - 1);
  std::memcpy(last_error, text, length);
  last_error[length] = '\0';
  last_peer = peer;
  return status;
}

// Without padding, a new field cannot lie in bytes that older programs leave undefined.
template <class T>
constexpr bool kGrows = std::has_unique_object_representations_v<T>;
static_assert(kGrows<ddprun_buffer> && kGrows<ddprun_parameter> && kGrows<ddprun_init_options> &&
              kGrows<ddprun_ddp_options> && kGrows<ddprun_sampler_options>);

template <class T>
T options_of(const T* given) {
  return given ? struct_of(given) : T{};
}

std::chrono::milliseconds or_default(std::int64_t value, std::chrono::milliseconds otherwise) {
  return value == 0 ? otherwise : std::chrono::milliseconds(value);
}

InitOptions init_options_of(const ddprun_init_options* given) {
  const auto options = options_of(given);
  InitOptions result;
  if (options.init_method) result.init_method = options.init_method;
  if (options.backend) result.backend = options.backend;
  if (options.world_size > 0) {
    result.rank = options.rank;
    result.world_size = options.world_size;
  }
  result.init_timeout = or_default(options.init_timeout_ms, result.init_timeout);
  result.op_timeout = or_default(options.op_timeout_ms, result.op_timeout);
  return result;
}

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

ddprun_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return remember(static_cast<ddprun_status>(error.code().value()), error.what(),
                    error.where().peer);
  } catch (const std::exception& error) {
    return remember(DDPRUN_INTERNAL, error.what(), -1);
  } catch (...) {
    return remember(DDPRUN_INTERNAL, "an exception of an unknown type", -1);
  }
}

void require_argument(bool ok, const char* text) {
  if (!ok) throw Error(ErrorKind::bad_argument, {}, text);
}

Buffer buffer_of(const ddprun_buffer* given) {
  const ddprun_buffer buffer = struct_of(given);
  require_argument(buffer.reserved == 0, "a reserved field is not 0");
  require_argument(buffer.type >= DDPRUN_F32 && buffer.type <= DDPRUN_U8, "unknown element type");
  return {buffer.data, buffer.count, static_cast<DataType>(buffer.type)};
}

ReduceOp op_of(ddprun_op op) {
  require_argument(op >= DDPRUN_SUM && op <= DDPRUN_PROD, "unknown reduction");
  return static_cast<ReduceOp>(op);
}

CallOptions timeout_of(std::int64_t milliseconds) {
  return {.timeout = std::chrono::milliseconds(milliseconds)};
}

}  // namespace ddprun::worker_sdk

using namespace ddprun;
using namespace ddprun::worker_sdk;

extern "C" {

int ddprun_c_api_version(void) { return DDPRUN_C_API_VERSION; }
const char* ddprun_last_error(void) { return last_error; }
int ddprun_last_error_peer(void) { return last_peer; }

ddprun_status ddprun_group_init(const ddprun_init_options* options, ddprun_group** group) {
  return guarded([&] {
    require_argument(group, "the place for the handle is null");
    *group = nullptr;
    *group = new ddprun_group{ProcessGroup::init(init_options_of(options))};
  });
}

void ddprun_group_destroy(ddprun_group* group) { delete group; }

ddprun_status ddprun_group_split(ddprun_group* group, int color, int key, ddprun_group** part) {
  return guarded([&] {
    require_argument(group && part, "a handle is null");
    *part = nullptr;
    auto split = group->group.split(color, key);
    if (split) *part = new ddprun_group{std::move(*split)};
  });
}

void ddprun_group_abort(ddprun_group* group) {
  if (group) group->group.abort();
}

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
