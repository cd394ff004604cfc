// ddprun/c_api.h: who a group is, and its collectives.

#include "worker_sdk/group/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

extern "C" {

int ddprun_rank(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.rank(); });
}
int ddprun_world_size(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.world_size(); });
}
int ddprun_local_rank(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.local_rank(); });
}
int ddprun_restart_count(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.restart_count(); });
}
const char* ddprun_backend(const ddprun_group* group) {
  return answer("", [&] { return live(group).group.backend().c_str(); });
}

ddprun_status ddprun_all_reduce(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_reduce(buffer_of(inout), op_of(op), timeout_of(timeout_ms)); });
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

ddprun_status ddprun_work_wait(ddprun_work* work) {
  return guarded([&] { live(work).work.wait(); });
}

int ddprun_work_done(const ddprun_work* work) {
  return answer(-1, [&] { return live(work).work.done() ? 1 : 0; });
}

void ddprun_work_destroy(ddprun_work* work) { delete work; }

}  // extern "C"
