// ProcessGroup's operations, each in two forms: checks the arguments, then has the backend called.

#include "worker_sdk/group/process_group_impl.h"

namespace ddprun {
namespace {

using worker_sdk::Backend;
using worker_sdk::Call;
using worker_sdk::OpKind;

// What the backend is to do, once it is this operation's turn.
using OnOne = void (Backend::*)(const Call&, Buffer);
using OnTwo = void (Backend::*)(const Call&, Buffer, Buffer);

auto on(OnOne operation, Buffer buffer) {
  return [=](Backend& backend, const Call& call) { (backend.*operation)(call, buffer); };
}

auto on(OnTwo operation, Buffer in, Buffer out) {
  return [=](Backend& backend, const Call& call) { (backend.*operation)(call, in, out); };
}

}  // namespace

void ProcessGroup::all_reduce(Buffer inout, ReduceOp op, const CallOptions& options) {
  inside().run(inside().arguments.all_reduce(inout, op), options, on(&Backend::all_reduce, inout));
}
Work ProcessGroup::all_reduce_async(Buffer inout, ReduceOp op, const CallOptions& options) {
  return inside().run_async(inside().arguments.all_reduce(inout, op), options,
                            on(&Backend::all_reduce, inout));
}

void ProcessGroup::reduce_scatter(Buffer in, Buffer out, ReduceOp op, const CallOptions& options) {
  inside().run(inside().arguments.reduce_scatter(in, out, op), options,
               on(&Backend::reduce_scatter, in, out));
}
Work ProcessGroup::reduce_scatter_async(Buffer in, Buffer out, ReduceOp op,
                                        const CallOptions& options) {
  return inside().run_async(inside().arguments.reduce_scatter(in, out, op), options,
                            on(&Backend::reduce_scatter, in, out));
}

void ProcessGroup::broadcast(Buffer inout, int root, const CallOptions& options) {
  inside().run(inside().arguments.broadcast(inout, root), options, on(&Backend::broadcast, inout));
}
Work ProcessGroup::broadcast_async(Buffer inout, int root, const CallOptions& options) {
  return inside().run_async(inside().arguments.broadcast(inout, root), options,
                            on(&Backend::broadcast, inout));
}

void ProcessGroup::all_gather(Buffer in, Buffer out, const CallOptions& options) {
  inside().run(inside().arguments.all_gather(in, out), options, on(&Backend::all_gather, in, out));
}
Work ProcessGroup::all_gather_async(Buffer in, Buffer out, const CallOptions& options) {
  return inside().run_async(inside().arguments.all_gather(in, out), options,
                            on(&Backend::all_gather, in, out));
}

void ProcessGroup::all_to_all(Buffer in, Buffer out, const CallOptions& options) {
  inside().run(inside().arguments.all_to_all(in, out), options, on(&Backend::all_to_all, in, out));
}
Work ProcessGroup::all_to_all_async(Buffer in, Buffer out, const CallOptions& options) {
  return inside().run_async(inside().arguments.all_to_all(in, out), options,
                            on(&Backend::all_to_all, in, out));
}

void ProcessGroup::gather(Buffer in, Buffer out, int root, const CallOptions& options) {
  inside().run(inside().arguments.gather(in, out, root), options, on(&Backend::gather, in, out));
}
Work ProcessGroup::gather_async(Buffer in, Buffer out, int root, const CallOptions& options) {
  return inside().run_async(inside().arguments.gather(in, out, root), options,
                            on(&Backend::gather, in, out));
}

void ProcessGroup::scatter(Buffer in, Buffer out, int root, const CallOptions& options) {
  inside().run(inside().arguments.scatter(in, out, root), options, on(&Backend::scatter, in, out));
}
Work ProcessGroup::scatter_async(Buffer in, Buffer out, int root, const CallOptions& options) {
  return inside().run_async(inside().arguments.scatter(in, out, root), options,
                            on(&Backend::scatter, in, out));
}

void ProcessGroup::send(Buffer in, int destination, const CallOptions& options) {
  inside().run(inside().arguments.send(in, destination), options, on(&Backend::send, in));
}
Work ProcessGroup::send_async(Buffer in, int destination, const CallOptions& options) {
  return inside().run_async(inside().arguments.send(in, destination), options,
                            on(&Backend::send, in));
}

void ProcessGroup::recv(Buffer out, int source, const CallOptions& options) {
  inside().run(inside().arguments.recv(out, source), options, on(&Backend::recv, out));
}
Work ProcessGroup::recv_async(Buffer out, int source, const CallOptions& options) {
  return inside().run_async(inside().arguments.recv(out, source), options, on(&Backend::recv, out));
}

void ProcessGroup::barrier(const CallOptions& options) {
  inside().run({.kind = OpKind::kBarrier}, options,
               [](Backend& backend, const Call& call) { backend.barrier(call); });
}

std::shared_ptr<void> ProcessGroup::allocate(std::size_t bytes) {
  std::shared_ptr<void> memory;
  inside().run({.kind = OpKind::kAllocate, .count = bytes}, {},
               [&memory, bytes](Backend& backend, const Call& call) {
                 memory = backend.allocate(call, bytes);
               });
  return memory;
}

}  // namespace ddprun
