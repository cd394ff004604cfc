// ProcessGroup's operations, each in two forms: checks the arguments, then has the backend called.

#include "worker_sdk/group/process_group_impl.h"

namespace ddprun {

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

}  // namespace ddprun
