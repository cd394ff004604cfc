// ddprun/c/c_collectives.h: each collective in one line.

#include "worker_sdk/c/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

extern "C" {

ddprun_status ddprun_all_reduce(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_reduce(buffer_of(inout), op_of(op), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_reduce(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            ddprun_op op, int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.reduce(buffer_of(in), buffer_of(out), root, op_of(op),
                             timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_reduce_scatter(ddprun_group* group, const ddprun_buffer* in,
                                    const ddprun_buffer* out, ddprun_op op, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.reduce_scatter(buffer_of(in), buffer_of(out), op_of(op),
                                     timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_broadcast(ddprun_group* group, const ddprun_buffer* inout, int root,
                               int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.broadcast(buffer_of(inout), root, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_gather(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_gather(buffer_of(in), buffer_of(out), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_to_all(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_to_all(buffer_of(in), buffer_of(out), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_gather(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.gather(buffer_of(in), buffer_of(out), root, timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_scatter(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                             int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.scatter(buffer_of(in), buffer_of(out), root, timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_send(ddprun_group* group, const ddprun_buffer* in, int destination,
                          int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.send(buffer_of(in), destination, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_recv(ddprun_group* group, const ddprun_buffer* out, int source,
                          int64_t timeout_ms) {
  return guarded([&] { live(group).group.recv(buffer_of(out), source, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_barrier(ddprun_group* group, int64_t timeout_ms) {
  return guarded([&] { live(group).group.barrier(timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_reduce_async(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                      int64_t timeout_ms, ddprun_work** work) {
  return guarded([&] {
    require_argument(work, "the place for the handle is null");
    *work = nullptr;
    *work = new ddprun_work{
        live(group).group.all_reduce_async(buffer_of(inout), op_of(op), timeout_of(timeout_ms))};
  });
}

}  // extern "C"
