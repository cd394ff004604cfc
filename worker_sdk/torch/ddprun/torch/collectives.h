#pragma once
// Collectives of tensors with any strides and any type. Included through ddprun/torch.h.
//
//   ddprun::torch::all_reduce(group, losses, ddprun::ReduceOp::avg);
//   const at::Tensor all = ddprun::torch::all_gather(group, embeddings);  // [world_size, ...]
//
// A tensor that is not contiguous travels as a copy. Types that ddprun::DataType lacks, such as
// float8, are moved, but not reduced. tensor_lists.h has a tensor for each rank. Asynchronous
// operations are those of the group, with ddprun::torch::buffer(group, tensor).

#include <torch/torch.h>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor_call.h"

namespace ddprun::torch {
/// Replaces `inout` by the reduction over all ranks: ProcessGroup::all_reduce(). Throws
/// Error(unsupported) that names the type if `op` cannot reduce it (ddprun::is_defined()), such as
/// avg of integers and max of complex numbers; on nccl also if NCCL has no such reduction: band,
/// bor, bxor and premul_sum, and prod of complex numbers.
inline void all_reduce(ProcessGroup& group, const at::Tensor& inout, ReduceOp op = ReduceOp::sum,
                       const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_reduce", options);
  const at::Tensor whole = call.read_writable(inout);
  const detail::Reducible all = call.reducible(whole, op);
  group.all_reduce(detail::memory_of(all.numbers), all.op, options);
  detail::write_back(detail::in_type(all.numbers, inout.scalar_type()), inout);
}

/// Returns on the root the reduction over all ranks; an undefined tensor on the other ranks.
/// Refuses what all_reduce() refuses.
inline at::Tensor reduce(ProcessGroup& group, const at::Tensor& in, int root,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce", options);
  const detail::Reducible mine = call.reducible(call.read(in), op);
  const bool receives = group.rank() == root;
  const at::Tensor out = receives ? at::empty_like(mine.numbers) : at::Tensor();
  group.reduce(detail::memory_of(mine.numbers), receives ? detail::memory_of(out) : Buffer(), root,
               mine.op, options);
  return receives ? detail::in_type(out, in.scalar_type()) : out;
}

/// Returns the reduction over all ranks of this rank's share of `in` along the first dimension.
/// Refuses what all_reduce() refuses.
inline at::Tensor reduce_scatter(ProcessGroup& group, const at::Tensor& in,
                                 ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "reduce_scatter", options);
  const at::Tensor whole = call.read(in);
  const std::int64_t rows = call.share(whole);
  const detail::Reducible all = call.reducible(whole, op);
  const at::Tensor out = detail::rows_like(all.numbers, rows, false);
  group.reduce_scatter(detail::memory_of(all.numbers), detail::memory_of(out), all.op, options);
  return detail::in_type(out, in.scalar_type());
}

inline void broadcast(ProcessGroup& group, const at::Tensor& inout, int root,
                      const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "broadcast", options);
  const at::Tensor whole = call.read_writable(inout);
  group.broadcast(detail::contents(whole), root, options);
  detail::write_back(whole, inout);
}

/// Returns the ranks' tensors, stacked along a new first dimension. All have the same shape.
inline at::Tensor all_gather(ProcessGroup& group, const at::Tensor& in,
                             const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const at::Tensor whole = detail::TensorCall(group, "all_gather", options).read(in);
  const at::Tensor out = detail::rows_like(whole, group.world_size(), true);
  group.all_gather(detail::contents(whole), detail::contents(out), options);
  return out;
}

/// Sends each rank its share of `in` along the first dimension; returns the shares received.
inline at::Tensor all_to_all(ProcessGroup& group, const at::Tensor& in,
                             const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "all_to_all", options);
  const at::Tensor whole = call.read(in);
  (void)call.share(whole);
  const at::Tensor out = at::empty(whole.sizes(), whole.options());
  group.all_to_all(detail::contents(whole), detail::contents(out), options);
  return out;
}

/// Like all_gather() on the root; returns an undefined tensor on the other ranks.
inline at::Tensor gather(ProcessGroup& group, const at::Tensor& in, int root,
                         const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const at::Tensor whole = detail::TensorCall(group, "gather", options).read(in);
  const bool receives = group.rank() == root;
  const at::Tensor out =
      receives ? detail::rows_like(whole, group.world_size(), true) : at::Tensor();
  group.gather(detail::contents(whole), receives ? detail::contents(out) : Buffer(), root, options);
  return out;
}

/// Copies in[r] of the root to `out` of rank r; `in` of the other ranks is ignored.
inline void scatter(ProcessGroup& group, const at::Tensor& in, const at::Tensor& out, int root,
                    const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "scatter", options);
  const bool sends = group.rank() == root;
  const at::Tensor parts = sends ? call.read(in) : at::Tensor();
  const at::Tensor whole = call.read_writable(out);
  group.scatter(sends ? detail::contents(parts) : Buffer(), detail::contents(whole), root, options);
  detail::write_back(whole, out);
}

inline void send(ProcessGroup& group, const at::Tensor& in, int destination,
                 const CallOptions& options = {}) {
  const detail::TensorCall call(group, "send", options);
  group.send(detail::contents(call.read(in)), destination, options);
}

inline void recv(ProcessGroup& group, const at::Tensor& out, int source,
                 const CallOptions& options = {}) {
  const ::torch::NoGradGuard no_grad;
  const detail::TensorCall call(group, "recv", options);
  const at::Tensor whole = call.read_writable(out);
  group.recv(detail::contents(whole), source, options);
  detail::write_back(whole, out);
}

}  // namespace ddprun::torch
